// Gradio's image slider answers a mouse alone. This makes it a slider for keyboards and screen readers too: the keys
// are handed on to it as the drag that they stand for, once its picture is there.
() => {
  const STEPS = { ArrowLeft: -0.05, ArrowDown: -0.05, ArrowRight: 0.05, ArrowUp: 0.05, PageDown: -0.2, PageUp: 0.2, Home: -1, End: 1 };

  function places(handle) {
    const picture = handle.parentElement.querySelector("img");
    const around = handle.parentElement.getBoundingClientRect();
    const width = Math.min(around.width, (around.height * picture.naturalWidth) / (picture.naturalHeight || 1));
    const own = handle.getBoundingClientRect();
    const left = around.left + (around.width - width) / 2; // a picture in the middle of its place
    return { left, width, x: own.left + own.width / 2, y: own.top + own.height / 2 };
  }

  function tell(handle) {
    const { left, width, x } = places(handle);
    if (!width) return;
    handle.setAttribute("aria-valuenow", String(Math.round((100 * (x - left)) / width)));
  }

  function move(handle, step) {
    const { left, width, x, y } = places(handle);
    if (!width) return; // the next picture is on its way
    const target = Math.min(Math.max(x + step * width, left), left + width);
    const at = (clientX) => ({ bubbles: true, cancelable: true, view: window, clientX, clientY: y });
    handle.dispatchEvent(new MouseEvent("mousedown", at(x)));
    window.dispatchEvent(new MouseEvent("mousemove", at(target)));
    window.dispatchEvent(new MouseEvent("mouseup", at(target)));
    requestAnimationFrame(() => tell(handle));
  }

  function dress(handle) {
    const said = { role: "slider", tabindex: "0", "aria-label": "Share of the plain picture", "aria-valuemin": "0", "aria-valuemax": "100" };
    for (const [name, value] of Object.entries(said)) handle.setAttribute(name, value);
    handle.addEventListener("focus", () => tell(handle));
    handle.addEventListener("keydown", (event) => {
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      move(handle, STEPS[event.key]);
    });
    tell(handle);
  }

  function find() {
    for (const handle of document.querySelectorAll('.slider-wrap [data-testid="slider"]')) {
      if (!handle.parentElement.querySelector("img")?.naturalWidth) continue;
      if (handle.hasAttribute("tabindex")) tell(handle);
      else dress(handle);
    }
  }

  document.addEventListener("load", find, true); // of pictures: a load does not bubble
  new MutationObserver(find).observe(document.body, { childList: true, subtree: true });
}
