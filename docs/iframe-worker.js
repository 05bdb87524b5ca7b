// Search runs in a worker, which browsers allow no page that is read from a folder: there a hidden frame takes its place.
// The theme would load such a script from another host; it does not if one has this file's name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = `<script src="${url}"></script>`
      this.ready = new Promise((done) => this.frame.addEventListener("load", done))
      this.ready.then(() => {
        this.frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      })
      document.body.append(this.frame)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
