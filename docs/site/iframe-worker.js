// SPDX-License-Identifier: Apache-2.0
// A Worker for pages that were opened from a disk, where browsers refuse the real one: the script of the search runs in a
// hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      this.started = new Promise((resolve) => {
        inside.postMessage = (data) => this.answer(data);
        inside.importScripts = (...addresses) =>
          addresses.reduce((before, next) => before.then(() => load(inside, next)), Promise.resolve());
        load(inside, address).then(() => resolve(inside));
      });
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      this.started.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() {}
  };
}

function load(inside, address) {
  return new Promise((resolve, reject) => {
    const script = inside.document.createElement("script");
    script.src = address;
    script.onload = resolve;
    script.onerror = reject;
    inside.document.body.appendChild(script);
  });
}
