"""Every denoiser of diffusers built small and run in a sampler's loop, and the table of what works on it."""
