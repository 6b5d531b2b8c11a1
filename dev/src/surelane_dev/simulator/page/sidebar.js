// Show the sidebar: the current person, and the channels.
import { $, h } from "./dom.js";
import { avatar } from "./message.js";
import { store } from "./store.js";

export function renderPersona() {
  const people = [...store.users.values()].filter((user) => !user.is_bot);
  if ($("user").length !== people.length)
    $("user").replaceChildren(...people.map((user) => h("option", { value: user.id }, user.real_name)));
  $("user").value = store.user;
}

export function renderSidebar(openChannel) {
  const all = [...store.channels.values()].filter((channel) => !channel.is_im || channel.user === store.user);
  const entry = (channel) =>
    h(
      "li",
      {},
      h(
        "button",
        {
          class: `entry${store.unread.has(channel.id) ? " unread" : ""}`,
          "aria-current": channel.id === store.channel ? "page" : undefined,
          dataset: { focus: channel.id },
          onclick: () => openChannel(channel.id),
        },
        channel.is_im
          ? avatar(store.bot.id, store.bot.real_name)
          : h("span", { class: "hash", "aria-hidden": "true" }, "#"),
        channel.is_im ? store.bot.real_name : channel.name,
        channel.is_im && h("span", { class: "badge" }, "APP"),
        store.unread.has(channel.id) && h("span", { class: "count", "aria-label": "unread" }, "•"),
      ),
    );
  const signature = JSON.stringify([store.channel, store.user, [...store.unread]]);
  if ($("sidebar").signature === signature) return;
  $("sidebar").signature = signature;
  const focused = $("sidebar").contains(document.activeElement) && document.activeElement.dataset.focus;
  $("sidebar").replaceChildren(
    h("h2", {}, "Channels"),
    h("ul", {}, all.filter((channel) => !channel.is_im).map(entry)),
    h("h2", {}, "Direct messages"),
    h("ul", {}, all.filter((channel) => channel.is_im).map(entry)),
    h(
      "p",
      { class: "foot" },
      `Team ${store.team.id}, app ${store.team.app_id}. Everything here is kept in memory and gone when the simulator ends.`,
    ),
  );
  if (focused) $("sidebar").querySelector(`[data-focus="${focused}"]`)?.focus();
}
