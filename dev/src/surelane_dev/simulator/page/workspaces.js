// Show how the app is connected, and the workspaces beside this one: who has the app, and what people write there.
import { $, h, reconcile, toast } from "./dom.js";
import { changed, request, store } from "./store.js";

const others = () => store.workspaces.filter((workspace) => workspace.channels);
const chosen = () => others().find((workspace) => workspace.id === store.workspace) || others()[0];

async function ask(method, path, body) {
  try {
    await request(method, path, body);
  } catch (error) {
    toast(error.message, "bad");
  }
}

export function buildWorkspaces() {
  const choose = (event) => {
    store.workspace = event.target.value;
    changed();
  };
  const write = async (event) => {
    event.preventDefault();
    const text = $("workspace-text").value;
    $("workspace-text").value = "";
    await ask("POST", `/control/workspaces/${chosen().id}/messages`, {
      text,
      channel: $("workspace-channel").value,
    });
  };
  return [
    h("h3", {}, "Connection"),
    h("p", { id: "app-connection", class: "note", role: "status" }),
    h(
      "button",
      { id: "app-disconnect", class: "small", onclick: () => ask("POST", "/control/sockets/disconnect", {}) },
      "Disconnect",
    ),
    h("h3", {}, "Other workspaces"),
    h(
      "form",
      { class: "fault-form", onsubmit: write, "aria-label": "Write in another workspace" },
      h("label", {}, "Workspace", h("select", { id: "workspace", onchange: choose })),
      h("p", { id: "workspace-state", class: "note whole", role: "status" }),
      h("label", {}, "Channel", h("select", { id: "workspace-channel" })),
      h("label", {}, "Message", h("input", { id: "workspace-text", required: true, autocomplete: "off" })),
      h("button", { class: "primary" }, "Mention the app"),
      h("a", { id: "workspace-install", class: "whole", target: "_blank", rel: "noopener" }, "Install the app"),
      h(
        "button",
        {
          id: "workspace-remove",
          class: "small",
          type: "button",
          onclick: () => ask("DELETE", `/control/workspaces/${chosen().id}`),
        },
        "Remove the app",
      ),
    ),
    h("ol", { id: "workspace-messages", class: "rows", "aria-label": "Messages of the workspace" }),
  ];
}

export function renderWorkspaces() {
  const { used, connections } = store.sockets;
  const count = `${connections} connection${connections === 1 ? "" : "s"}`;
  set("app-connection", used ? `Socket Mode: ${count}` : `HTTP: events go to ${store.ingestUrl}`);
  $("app-disconnect").hidden = !used;
  $("app-disconnect").disabled = connections === 0;
  const workspace = chosen();
  if (!workspace) return;
  options(
    $("workspace"),
    others().map(({ id, name }) => [id, name]),
  );
  $("workspace").value = workspace.id;
  options(
    $("workspace-channel"),
    workspace.channels.map(({ id, name, shared }) => [id, shared ? `${name}, shared` : name]),
  );
  const within = workspace.enterprise_id ? ` of ${workspace.enterprise_id}` : "";
  const has = workspace.installed ? "It has the app." : "It does not have the app.";
  set("workspace-state", `${workspace.id}${within}. You are ${workspace.person}. ${has}`);
  $("workspace-install").hidden = workspace.installed;
  $("workspace-install").href = `${store.ingestUrl}/slack/install?team=${workspace.id}`;
  $("workspace-remove").hidden = !workspace.installed;
  const messages = [...workspace.messages].reverse();
  reconcile(
    $("workspace-messages"),
    messages.map((message) => ({ key: message.ts, signature: JSON.stringify(message), message })),
    ({ message }) =>
      h(
        "li",
        {},
        h("p", { class: "note" }, `# ${message.channel} · ${message.who}, ${message.team}`),
        h("p", {}, message.text),
      ),
  );
}

// A status that is written again is read out again.
function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function options(select, wanted) {
  const signature = JSON.stringify(wanted);
  if (select.dataset.of === signature) return;
  select.dataset.of = signature;
  select.replaceChildren(...wanted.map(([value, label]) => h("option", { value }, label)));
}
