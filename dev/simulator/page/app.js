// Puts the page together: the sidebar, the channel, the thread, and what the keyboard does.
import { $, h, reconcile, toast } from "./dom.js";
import { changed, follow, messagesOf, onChange, request, store } from "./store.js";
import { avatar, messageItem, signatureOf } from "./message.js";
import { composer } from "./composer.js";
import { listenForModals } from "./modal.js";
import { buildTools, renderTools } from "./tools.js";

const TOGETHER = 300; // seconds within which one person's messages stand together

const main = composer($("composer"), { id: "composer-text", label: "Message", place: () => ({ channel: store.channel }), sent: showThread });
const side = composer($("thread-composer"), { id: "thread-text", label: "Reply", place: () => ({ channel: store.channel, thread: store.thread }) });

function openChannel(id) {
  Object.assign(store, { channel: id, thread: null });
  if (store.pane === "thread") store.pane = null;
  store.unread.delete(id);
  location.hash = id;
  showSidebar(false);
  changed();
  if (matchMedia("(min-width: 760px)").matches) main.focus();
}

function openThread(ts) {
  Object.assign(store, { thread: ts, pane: "thread" });
  location.hash = `${store.channel}/${ts}`;
  changed();
  setTimeout(side.focus, 30);
}

// Beside the channel, on a wide screen: the answer is about to arrive there.
function showThread(message) {
  if (store.pane === "tools" || !matchMedia("(min-width: 1021px)").matches) return;
  Object.assign(store, { thread: message.ts, pane: "thread" });
  location.hash = `${message.channel}/${message.ts}`;
  changed();
}

function closePane() {
  const was = store.pane;
  Object.assign(store, { pane: null, thread: null });
  location.hash = store.channel;
  changed();
  (was === "tools" ? $("tools-toggle") : $("composer-text")).focus();
}

function showSidebar(on) {
  document.body.classList.toggle("menu-open", on);
  $("menu").setAttribute("aria-expanded", String(on));
}

function readHash() {
  const [channel, thread] = location.hash.slice(1).split("/");
  const found = store.channels.get(channel);
  if (found && (!found.is_im || found.user === store.user)) {
    store.channel = channel;
    if (thread && store.messages.has(`${channel}/${thread}`)) Object.assign(store, { thread, pane: "thread" });
  }
  if (!store.channel) store.channel = store.channels.keys().next().value;
}

function render() {
  if (!store.bot) return;
  if (!store.channel) readHash();
  const channel = store.channels.get(store.channel);
  renderPersona();
  renderSidebar();
  $("channel-name").textContent = channel.is_im ? store.bot.real_name : `# ${channel.name}`;
  $("channel-topic").textContent = channel.is_im ? "Direct messages with the app" : channel.topic.value;
  $("invite").hidden = channel.is_im || channel.members.includes(store.bot.id);
  renderMessages($("messages"), store.channel, null);
  $("thread").hidden = store.pane !== "thread";
  if (store.pane === "thread") {
    $("thread-channel").textContent = channel.is_im ? store.bot.real_name : `# ${channel.name}`;
    renderMessages($("thread-messages"), store.channel, store.thread);
  }
  $("tools").hidden = store.pane !== "tools";
  $("tools-toggle").setAttribute("aria-expanded", String(store.pane === "tools"));
  $("fault-count").hidden = store.faults.length === 0;
  $("fault-count").textContent = String(store.faults.length);
  document.body.dataset.pane = store.pane || "";
  main.show();
  side.show();
  renderTools();
}

function renderPersona() {
  const people = [...store.users.values()].filter((user) => !user.is_bot);
  if ($("user").length !== people.length) $("user").replaceChildren(...people.map((user) => h("option", { value: user.id }, user.real_name)));
  $("user").value = store.user;
}

function renderSidebar() {
  const all = [...store.channels.values()].filter((channel) => !channel.is_im || channel.user === store.user);
  const entry = (channel) => h("li", {}, h("button", {
    class: `entry${store.unread.has(channel.id) ? " unread" : ""}`, "aria-current": channel.id === store.channel ? "page" : undefined, dataset: { focus: channel.id }, onclick: () => openChannel(channel.id) },
    channel.is_im ? avatar(store.bot.id, store.bot.real_name) : h("span", { class: "hash", "aria-hidden": "true" }, "#"), channel.is_im ? store.bot.real_name : channel.name,
    channel.is_im && h("span", { class: "badge" }, "APP"), store.unread.has(channel.id) && h("span", { class: "count", "aria-label": "unread" }, "•")));
  const signature = JSON.stringify([store.channel, store.user, [...store.unread]]);
  if ($("sidebar").signature === signature) return;
  $("sidebar").signature = signature;
  const focused = $("sidebar").contains(document.activeElement) && document.activeElement.dataset.focus;
  $("sidebar").replaceChildren(
    h("h2", {}, "Channels"), h("ul", {}, all.filter((channel) => !channel.is_im).map(entry)),
    h("h2", {}, "Direct messages"), h("ul", {}, all.filter((channel) => channel.is_im).map(entry)),
    h("p", { class: "foot" }, `Team ${store.team.id}, app ${store.team.app_id}. Everything here is kept in memory and gone when the simulator ends.`));
  if (focused) $("sidebar").querySelector(`[data-focus="${focused}"]`)?.focus();
}

function renderMessages(list, channel, thread) {
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 90;
  const place = `${channel}/${thread}`;
  const fresh = list.place !== place;
  list.place = place;
  reconcile(list, items(channel, thread), (item) => item.make());
  if (fresh || atEnd) list.scrollTop = list.scrollHeight;
}

function items(channel, thread) {
  const made = [];
  let before = null;
  for (const message of messagesOf(channel, thread)) {
    const day = new Date(message.ts * 1000).toDateString();
    if (!thread && (!before || new Date(before.ts * 1000).toDateString() !== day)) {
      made.push({ key: day, signature: day, make: () => h("li", { class: "day" }, h("span", {}, day === new Date().toDateString() ? "Today" : day)) });
    }
    const follows = Boolean(before) && before.user === message.user && message.ts - before.ts < TOGETHER && !before.reply_count && before.subtype !== "tombstone";
    const inThread = Boolean(thread);
    made.push({ key: message.ts, signature: signatureOf(message, follows, inThread), make: () => messageItem({ message, follows, inThread, openThread }) });
    if (thread && message.ts === thread && message.reply_count) {
      const count = message.reply_count === 1 ? "1 reply" : `${message.reply_count} replies`;
      made.push({ key: "count", signature: count, make: () => h("li", { class: "day replies" }, h("span", {}, count)) });
    }
    before = message;
  }
  const doing = store.statuses.filter((status) => status.channel === channel && status.until * 1000 > Date.now() && (!thread || status.thread_ts === thread));
  for (const status of doing) {
    made.push({ key: `status ${status.thread_ts}`, signature: status.text, make: () => h("li", { class: "status" }, h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i")), `${store.bot.real_name} ${status.text}`) });
  }
  if (!made.length) made.push({ key: "empty", signature: channel, make: () => emptyNote(channel) });
  return made;
}

function emptyNote(id) {
  const channel = store.channels.get(id);
  const hint = channel.is_im || channel.members.includes(store.bot.id) ? "Write something to the bot: the event goes to ingest, and the answer comes back here." : "The bot is not in this channel and hears nothing of it.";
  return h("li", { class: "empty" }, h("p", {}, "Nothing here yet."), h("p", { class: "note" }, hint));
}

$("menu").onclick = () => showSidebar(!document.body.classList.contains("menu-open"));
$("thread-close").onclick = closePane;
$("tools-close").onclick = closePane;
$("tools-toggle").onclick = () => { if (store.pane === "tools") closePane(); else { store.pane = "tools"; changed(); } };
$("user").onchange = (event) => {
  store.user = event.target.value;
  localStorage.setItem("user", store.user);
  if (store.channels.get(store.channel).is_im) openChannel([...store.channels.values()].find((channel) => channel.user === store.user).id);
  changed();
};
$("invite").onclick = async () => {
  try { await request("POST", `/control/channels/${store.channel}/members`, { user: store.bot.id }); } catch (error) { toast(error.message, "bad"); }
};
addEventListener("hashchange", () => { if (store.bot && location.hash.slice(1) !== [store.channel, store.thread].filter(Boolean).join("/")) { readHash(); changed(); } });
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("modal").open) return;
  if (document.body.classList.contains("menu-open")) { showSidebar(false); $("menu").focus(); } else if (store.pane) closePane();
});
setInterval(() => { if (store.statuses.some((status) => status.until * 1000 < Date.now())) changed(); }, 1000);

buildTools();
listenForModals();
onChange(render);
follow((state) => {
  $("connection").dataset.state = state;
  $("connection").firstElementChild.textContent = state === "live" ? "live" : "the simulator does not answer";
});
