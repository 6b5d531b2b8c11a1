// Show how the app is connected, and the workspaces: which have the app, and how it is installed and removed.
import { $, h, reconcile, setText, toast } from "./dom.js";
import { request, store } from "./store.js";

async function ask(method, path, body) {
  try {
    await request(method, path, body);
  } catch (error) {
    toast(error.message, "bad");
  }
}

export function buildWorkspaces() {
  return [
    h("h3", {}, "Connection"),
    h("p", { id: "app-connection", class: "note", role: "status" }),
    h(
      "button",
      { id: "app-disconnect", class: "small", onclick: () => ask("POST", "/control/sockets/disconnect", {}) },
      "Disconnect",
    ),
    h("h3", { id: "workspaces-title" }, "Workspaces"),
    h("ul", { id: "workspaces", class: "workspaces", "aria-labelledby": "workspaces-title" }),
  ];
}

export function renderWorkspaces() {
  const { used, connections } = store.sockets;
  const count = `${connections} connection${connections === 1 ? "" : "s"}`;
  setText("app-connection", used ? `Socket Mode: ${count}` : `HTTP: events go to ${store.ingestUrl}`);
  $("app-disconnect").hidden = !used;
  $("app-disconnect").disabled = connections === 0;
  reconcile(
    $("workspaces"),
    store.workspaces.map((workspace, at) => ({
      key: workspace.id,
      signature: JSON.stringify(workspace),
      to: at ? workspace.id : "",
      workspace,
    })),
    item,
  );
}

function item({ workspace, to }) {
  const { id, name, enterprise_id, installed, removable, install_url } = workspace;
  const has = installed ? "It has the app." : "It does not have the app.";
  const remove = () => ask("DELETE", `/control/workspaces/${id}`);
  return h(
    "li",
    {},
    h(
      "div",
      {},
      h("a", { class: "link", href: `#${to}` }, name),
      h("p", { class: "note" }, `${id}${enterprise_id ? ` of ${enterprise_id}` : ""}. ${has}`),
    ),
    !installed &&
      h(
        "a",
        {
          class: "link-button",
          href: install_url,
          target: "_blank",
          rel: "noopener",
          "aria-label": `Install the app in ${name}`,
        },
        "Install the app",
      ),
    removable &&
      h(
        "button",
        {
          class: "small",
          "aria-label": `Remove the app from ${name}`,
          dataset: { focus: `remove-${id}` },
          onclick: remove,
        },
        "Remove the app",
      ),
  );
}
