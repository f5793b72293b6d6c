// Lets the search work where the site is opened from a folder: browsers start no worker there, so its script runs in a
// hidden frame. Material asks for a file of this name, and would load one from another server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe"), script = document.createElement("script");
      frame.hidden = true;
      document.body.append(frame);
      frame.contentDocument.open();  // Firefox would load an empty page later, over the script
      frame.contentDocument.write("<body>");
      frame.contentDocument.close();
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve) => { script.onload = resolve; });
      script.src = new URL(address, location);
      frame.contentDocument.body.append(script);
    }

    async postMessage(data) {
      await this.ready;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
