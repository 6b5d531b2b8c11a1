// Show the sidebar: the current person, and the channels.
import { $, h } from "./dom.js";
import { avatar } from "./message.js";
import { isUnread, people, store, workspace } from "./store.js";

export function renderPersona() {
  const names = people().map(({ id, real_name }) => [id, real_name]);
  if ($("user").signature !== String(names)) {
    $("user").signature = String(names);
    $("user").replaceChildren(...names.map(([value, name]) => h("option", { value }, name)));
  }
  $("user").value = store.user;
}

export function renderSidebar(openChannel) {
  const { installed } = workspace();
  const shown = (channel) => !channel.is_im || (installed && channel.user === store.user);
  const all = [...store.channels.values()].filter(shown);
  const entry = (channel) =>
    h(
      "li",
      {},
      h(
        "button",
        {
          class: `entry${isUnread(channel.id) ? " unread" : ""}`,
          "aria-current": channel.id === store.channel ? "page" : undefined,
          dataset: { focus: channel.id },
          onclick: () => openChannel(channel.id),
        },
        channel.is_im
          ? avatar(store.bot.id, store.bot.real_name)
          : h("span", { class: "hash", "aria-hidden": "true" }, "#"),
        channel.is_im ? store.bot.real_name : channel.name,
        channel.is_im && h("span", { class: "badge" }, "APP"),
        channel.is_ext_shared && h("span", { class: "shared" }, "shared"),
        isUnread(channel.id) && h("span", { class: "count", role: "img", "aria-label": "unread" }, "•"),
      ),
    );
  const list = $("channels");
  const signature = JSON.stringify([store.team.id, store.channel, store.user, installed, [...store.unread]]);
  if (list.signature === signature) return;
  list.signature = signature;
  const focused = list.contains(document.activeElement) && document.activeElement.dataset.focus;
  const messages = all.filter((channel) => channel.is_im);
  const kept = store.kept
    ? "Messages are kept over a restart."
    : "Everything here is kept in memory and gone when the simulator ends.";
  list.replaceChildren(
    h("h2", {}, "Channels"),
    h("ul", {}, all.filter((channel) => !channel.is_im).map(entry)),
    messages.length ? h("h2", {}, "Direct messages") : "",
    messages.length ? h("ul", {}, messages.map(entry)) : "",
    h("p", { class: "foot" }, `Team ${store.team.id}, app ${store.team.app_id}. ${kept}`),
  );
  if (focused) list.querySelector(`[data-focus="${focused}"]`)?.focus();
}
