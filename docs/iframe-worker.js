// A Worker that is a hidden iframe, for the search: browsers allow no workers on pages opened from
// a folder. The interface is that of https://github.com/squidfunk/iframe-worker.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    inside.document.open();
    inside.postMessage = (data) => this.receive(new MessageEvent("message", { data }));
    inside.importScripts = (...scripts) => scripts.reduce(
      (earlier, script) => earlier.then(() => load(inside.document, script)), Promise.resolve());
    inside.onerror = (message) => this.receive(new ErrorEvent("error", { message }));
    this.loaded = new Promise((resolve) => { inside.onload = resolve; });
    inside.document.write(`<body><script src="${url}"></script></body>`);
    inside.document.close();
  }

  async postMessage(message) {
    const data = structuredClone(message);
    await this.loaded;
    this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
  }

  terminate() {
    this.frame.remove();
  }

  receive(event) {
    this.dispatchEvent(event);
    this[`on${event.type}`]?.(event);
  }
}

function load(page, src) {
  return new Promise((resolve, reject) => {
    const script = Object.assign(page.createElement("script"), { src });
    script.onload = resolve;
    script.onerror = reject;
    page.body.append(script);
  });
}

if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = IFrameWorker;
}
