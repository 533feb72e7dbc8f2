// The widget of plan.explore(): shows the dashboard's page for one plan in the output of a notebook's cell.
// Python puts PAGE in front of this file: the page's HTML, and its modules by the name under which they import each other.
// The page has a frame of its own, so that its styles and ids stay apart from the notebook's; its requests become messages.

const PATIENCE_MS = 60000;
/** Settings of many clients are compared for minutes; earlier answers show that Python is there. */
const LONG_PATIENCE_MS = 900000;
const HEIGHT = 900;

/** Return the notebook's theme, or null if it does not say. */
function theme() {
  const { dataset, classList } = document.body;
  if (dataset.jpThemeLight) return dataset.jpThemeLight === "true" ? "light" : "dark";
  if (classList.contains("vscode-light") || classList.contains("vscode-dark")) return classList.contains("vscode-dark") ? "dark" : "light";
  return null;
}

/** Start the page's modules: an import map tells where each of them is, so there is nothing to bundle. */
function start(page) {
  const add = (type, fields) => page.document.head.append(Object.assign(page.document.createElement("script"), { type, ...fields }));
  const imports = Object.fromEntries(Object.entries(PAGE.modules).map(([name, source]) => [name, page.URL.createObjectURL(new page.Blob([source], { type: "text/javascript" }))]));
  add("importmap", { textContent: JSON.stringify({ imports }) });
  add("module", { textContent: `import ${JSON.stringify(PAGE.main)};` });
}

function render({ model, el }) {
  const frame = document.createElement("iframe"), waiting = new Map(), view = Math.random().toString(36).slice(2);
  const first = JSON.parse(model.get("first"));
  let asked = 0, own = null;

  const arrived = (message) => { waiting.get(message.id)?.(message); waiting.delete(message.id); };
  model.on("msg:custom", arrived);

  /** Answer a request of the page: from what came with the widget, else from Python. */
  async function answer(address, { signal } = {}) {
    const [path, text = ""] = address.split("?"), query = Object.fromEntries(new URLSearchParams(text));
    if (path === "api/problem") return new Response(first.problem);
    if (path.startsWith("api/plan")) {
      const { page, number, near, ...settings } = query, wish = JSON.stringify(settings);
      own ??= wish; // the page asks first for the plan as it is
      if (wish === own) return path === "api/plan/joint" ? new Response("{}", { status: 404 }) : new Response(first.plan); // no end time is marked: it may be a plan of other settings
    }
    const { status, body } = await new Promise((resolve, reject) => {
      const id = `${view}-${asked++}`;
      waiting.set(id, resolve);
      signal?.addEventListener("abort", () => { waiting.delete(id); reject(new DOMException("stopped", "AbortError")); });
      const gone = { error: "Python does not answer. Start the kernel, and run the cell again.", outdated: path === "api/front" };
      setTimeout(() => resolve({ status: 503, body: JSON.stringify(gone) }), path === "api/plan/best" ? LONG_PATIENCE_MS : PATIENCE_MS);
      model.send({ id, path, query });
    });
    return new Response(body, { status });
  }

  let sized = null;
  frame.title = "Plan";
  frame.style.cssText = `display:block;width:100%;height:${HEIGHT}px;border:0`;
  frame.srcdoc = PAGE.html;
  frame.addEventListener("load", () => {
    const page = frame.contentWindow, { body, documentElement: root } = page.document;
    if (theme()) root.classList.add(theme());
    page.fetch = answer;
    sized = new page.ResizeObserver(() => { if (body.offsetHeight) frame.style.height = `${body.offsetHeight + 2}px`; });
    sized.observe(body);
    start(page);
  }, { once: true });
  el.append(frame);
  return () => { sized?.disconnect(); model.off("msg:custom", arrived); };
}

export default { render };
