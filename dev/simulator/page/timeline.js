// Show the messages of a channel or a thread in order, with the days between them.
import { h, reconcile } from "./dom.js";
import { messageItem, repliesLabel, signatureOf } from "./message.js";
import { messagesOf, store } from "./store.js";

const LATEST = 300; // messages that a channel shows; under load there are thousands
const TOGETHER = 300; // seconds within which one person's messages share a heading

export function renderMessages(list, channel, thread, openThread) {
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 90;
  const place = `${channel}/${thread}`;
  const fresh = list.place !== place;
  list.place = place;
  reconcile(list, items(channel, thread, openThread), (item) => item.make());
  if (fresh || atEnd) list.scrollTop = list.scrollHeight;
}

function items(channel, thread, openThread) {
  const made = [];
  let before = null;
  for (const message of messagesOf(channel, thread).slice(thread ? 0 : -LATEST)) {
    if (!thread && (!before || dayOf(before) !== dayOf(message))) made.push(divider(dayOf(message)));
    const follows = Boolean(before) && standsTogether(before, message);
    const inThread = Boolean(thread);
    made.push({
      key: message.ts,
      signature: signatureOf(message, follows, inThread),
      make: () => messageItem({ message, follows, inThread, openThread }),
    });
    if (thread === message.ts && message.reply_count)
      made.push(divider(repliesLabel(message), "day replies"));
    before = message;
  }
  made.push(...statusesOf(channel, thread).map(statusItem));
  return made.length ? made : [{ key: "empty", signature: channel, make: () => emptyNote(channel) }];
}

const dayOf = (message) => new Date(message.ts * 1000).toDateString();

function standsTogether(before, message) {
  const sameAuthor = before.user === message.user && before.username === message.username;
  const closed = before.reply_count || before.subtype === "tombstone";
  return sameAuthor && !closed && message.ts - before.ts < TOGETHER;
}

function divider(label, kind = "day") {
  const text = label === new Date().toDateString() ? "Today" : label;
  return { key: kind + label, signature: text, make: () => h("li", { class: kind }, h("span", {}, text)) };
}

function statusesOf(channel, thread) {
  return store.statuses.filter(
    (status) =>
      status.channel === channel &&
      status.until * 1000 > Date.now() &&
      (!thread || status.thread_ts === thread),
  );
}

function statusItem(status) {
  const dots = () => h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
  return {
    key: `status ${status.thread_ts}`,
    signature: status.text,
    make: () => h("li", { class: "status" }, dots(), `${store.bot.real_name} ${status.text}`),
  };
}

function emptyNote(id) {
  const channel = store.channels.get(id);
  const hint =
    channel.is_im || channel.members.includes(store.bot.id)
      ? "Write something to the bot: the event goes to ingest, and the answer comes back here."
      : "The bot is not in this channel and hears nothing of it.";
  return h("li", { class: "empty" }, h("p", {}, "Nothing here yet."), h("p", { class: "note" }, hint));
}
