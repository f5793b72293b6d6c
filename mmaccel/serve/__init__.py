"""One accelerated model behind HTTP, as programs that speak to OpenAI expect it: `mmaccel serve`."""
