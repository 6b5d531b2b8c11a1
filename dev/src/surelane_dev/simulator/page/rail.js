// Show the workspaces to choose from: a rail of links. The address names the workspace, the channel and the thread, so
// that a page that is loaded again shows the same.
import { $, h, reconcile, setText } from "./dom.js";
import { hasUnread, several, store } from "./store.js";

const left = new Map(); // the place in each workspace that a person saw last

// Return what the address asks for. It names the first workspace by no id.
export function asked() {
  const parts = location.hash.slice(1).split("/");
  const team = /^[ET]/.test(parts[0]) ? parts.shift() : store.workspaces[0]?.id;
  return { team, channel: parts[0], thread: parts[1] };
}

// Return the address of what the page shows.
export function place() {
  const team = store.team.id === store.workspaces[0].id ? null : store.team.id;
  return [team, store.channel, store.thread].filter(Boolean).join("/");
}

export function renderRail() {
  const shown = several();
  $("rail").hidden = !shown;
  $("team-name").hidden = !shown;
  document.body.classList.toggle("several", shown);
  setText("team-name", store.team.name);
  left.set(store.team.id, place());
  reconcile(
    $("rail-list"),
    store.workspaces.map((each, at) => {
      const item = {
        ...each,
        at,
        current: each.id === store.team.id,
        unread: hasUnread(each.id),
        to: left.get(each.id) ?? (at ? each.id : ""),
      };
      return { key: each.id, signature: JSON.stringify(item), item };
    }),
    entry,
  );
}

function entry({ item }) {
  const words = item.name.split(" ");
  return h(
    "li",
    {},
    h(
      "a",
      {
        href: `#${item.to}`,
        class: `team${item.installed ? "" : " without"}${item.unread ? " unread" : ""}`,
        "aria-current": item.current ? "page" : undefined,
        title: item.enterprise_id ? `${item.name}, of ${item.enterprise_id}` : item.name,
        dataset: { focus: item.id },
      },
      h(
        "span",
        { class: `avatar hue${item.at % 6}`, "aria-hidden": "true" },
        words.map(([letter]) => letter).join(""),
      ),
      h("span", { class: "name" }, item.name),
      item.unread && h("span", { class: "unseen" }, "unread"),
      !item.installed && h("span", { class: "unseen" }, "without the app"),
    ),
  );
}
