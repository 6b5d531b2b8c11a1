// One message: who, when, what, reactions, thread, and how its events fared.
import { clock, h, toast } from "./dom.js";
import { emoji, inline, rich } from "./text.js";
import { deliveriesOf, request, store } from "./store.js";
import { deliveryLine } from "./delivery.js";

const QUICK = ["+1", "eyes", "white_check_mark", "tada", "heart", "thinking_face"];

export function signatureOf(message, follows, inThread) {
  return JSON.stringify([message, deliveriesOf(message), follows, inThread, store.user]);
}

export function messageItem({ message, follows, inThread, openThread }) {
  const app = Boolean(message.bot_id);
  const name = message.username || store.users.get(message.user)?.real_name || message.user;
  const item = h("li", { class: `message${follows ? " follows" : ""}${app ? " app" : ""}`, "aria-label": `${name}, ${clock(message.ts)}` });
  const time = h("time", { datetime: new Date(message.ts * 1000).toISOString(), title: new Date(message.ts * 1000).toLocaleString() }, clock(message.ts));
  item.append(...[
    follows ? h("div", { class: "gutter" }, time) : avatar(message.user, name),
    h("div", { class: "body" },
      !follows && h("p", { class: "who" }, h("strong", {}, name), app && h("span", { class: "badge" }, "APP"), time),
      message.visible_to && h("p", { class: "note" }, "Only visible to you"),
      content(message),
      reactions(message),
      !inThread && threadLine(message, openThread),
      inThread && message.subtype === "thread_broadcast" && h("p", { class: "note" }, "also sent to the channel"),
      deliveriesOf(message).map(deliveryLine),
    ),
    actions(message, inThread, openThread),
  ].filter(Boolean));
  return item;
}

export function avatar(id, name) {
  const hue = [...id].reduce((sum, letter) => sum * 31 + letter.charCodeAt(0), 7) % 6;
  return h("span", { class: `avatar hue${hue}${store.bot?.id === id ? " bot" : ""}`, "aria-hidden": "true" }, store.bot?.id === id ? "🤖" : name[0]);
}

function content(message) {
  if (message.subtype === "tombstone") return h("p", { class: "text gone" }, message.text);
  const own = (message.blocks || []).filter((block) => block.type !== "rich_text" || !message.client_msg_id);
  const markdown = own.length === 1 && own[0].type === "markdown";
  return [
    (message.tasks || []).map(task),
    (message.text && (!own.length || message.streaming || message.tasks.length)) || markdown
      ? h("div", { class: "text" }, rich(message.text), message.streaming && h("span", { class: "caret", "aria-label": "still writing" }))
      : message.streaming && h("div", { class: "text" }, h("span", { class: "caret", "aria-label": "still writing" })),
    message.edited && h("span", { class: "note" }, "(edited)"),
    markdown ? null : own.map((part) => block(part, message)),
    (message.attachments || []).map((part) => h("div", { class: "attachment" }, inline(part.text || part.fallback || ""))),
  ];
}

function task(part) {
  const marks = { pending: "○", in_progress: "◌", complete: "✓", error: "✕" };
  return h("p", { class: `task ${part.status || ""}` }, h("span", { "aria-hidden": "true" }, marks[part.status] || "○"), " ", part.title || part.id,
    part.details && h("small", {}, part.details));
}

function block(part, message) {
  const text = (object) => object ? (object.type === "plain_text" ? [object.text] : rich(object.text)) : [];
  switch (part.type) {
    case "header": return h("p", { class: "block headline" }, text(part.text));
    case "divider": return h("hr");
    case "markdown": return h("div", { class: "block text" }, rich(part.text));
    case "section": return h("div", { class: "block section" }, h("div", { class: "text" }, text(part.text),
      part.fields && h("div", { class: "fields" }, part.fields.map((field) => h("div", {}, text(field))))),
    part.accessory && element(part.accessory, message));
    case "context": return h("div", { class: "block context" }, (part.elements || []).map((each) => h("span", {}, text(each))));
    case "actions": return h("div", { class: "block actions-block" }, (part.elements || []).map((each) => element(each, message)));
    case "rich_text": return h("div", { class: "block text" }, (part.elements || []).flatMap((section) => richSection(section)));
    default: return h("p", { class: "block note" }, `[${part.type}]`);
  }
}

function richSection(section) {
  const styled = (each) => each.type === "user" ? inline(`<@${each.user_id}>`) : each.type === "link" ? inline(`<${each.url}|${each.text || each.url}>`)
    : each.type === "emoji" ? [emoji(each.name)] : each.style?.bold ? [h("strong", {}, each.text)] : each.style?.code ? [h("code", {}, each.text)] : [each.text || ""];
  const inner = (section.elements || []).flatMap((each) => each.elements ? richSection(each) : styled(each));
  return section.type === "rich_text_preformatted" ? [h("pre", {}, inner)] : section.type === "rich_text_quote" ? [h("blockquote", {}, inner)] : [h("div", {}, inner)];
}

function element(part, message) {
  if (part.type !== "button") return h("span", { class: "note" }, `[${part.type}]`);
  const press = async (event) => {
    event.target.disabled = true;
    try {
      const answer = await request("POST", "/control/actions", { channel: message.channel, ts: message.ts, action_id: part.action_id, user: store.user });
      if (answer.problem) toast(`The app did not take it: ${answer.problem} ${answer.status || ""}`, "bad");
    } catch (error) { toast(error.message, "bad"); } finally { event.target.disabled = false; }
  };
  return h("button", { class: `block-button ${part.style || ""}`, dataset: { focus: `b-${part.action_id}` }, onclick: press }, part.text?.text || part.action_id);
}

async function react(message, name) {
  try { await request("POST", "/control/reactions", { channel: message.channel, ts: message.ts, name, user: store.user }); } catch (error) { toast(error.message, "bad"); }
}

function reactions(message) {
  if (!message.reactions?.length) return null;
  return h("div", { class: "reactions" }, message.reactions.map(({ name, users, count }) => {
    const names = users.map((id) => store.users.get(id)?.real_name || id).join(", ");
    const mine = users.includes(store.user);
    return h("button", { class: mine ? "reaction mine" : "reaction", "aria-pressed": String(mine), "aria-label": `${name}, ${count}: ${names}`, title: `${names} reacted with :${name}:`,
      dataset: { focus: `r-${name}` }, onclick: () => react(message, name) }, emoji(name), " ", h("span", {}, String(count)));
  }));
}

function threadLine(message, openThread) {
  if (!message.reply_count) return null;
  const label = message.reply_count === 1 ? "1 reply" : `${message.reply_count} replies`;
  return h("button", { class: "thread-line", dataset: { focus: "thread" }, onclick: () => openThread(message.ts) },
    (message.reply_users || []).slice(0, 4).map((id) => avatar(id, store.users.get(id)?.real_name || id)),
    h("span", { class: "link" }, label), h("span", { class: "note" }, `last ${clock(message.latest_reply)}`));
}

function actions(message, inThread, openThread) {
  if (message.subtype === "tombstone" || message.visible_to) return null;
  const remove = async () => {
    try { await request("DELETE", "/control/messages", { channel: message.channel, ts: message.ts, user: store.user }); } catch (error) { toast(error.message, "bad"); }
  };
  return h("div", { class: "hover", role: "group", "aria-label": "Message actions" },
    QUICK.slice(0, inThread ? 3 : 4).map((name) => h("button", { class: "plain", "aria-label": `React with ${name}`, title: `:${name}:`, onclick: () => react(message, name) }, emoji(name))),
    !inThread && h("button", { class: "plain", "aria-label": "Reply in thread", title: "Reply in thread", onclick: () => openThread(message.thread_ts || message.ts) }, "💬"),
    message.user === store.user && h("button", { class: "plain", "aria-label": "Delete the message", title: "Delete", onclick: remove }, "🗑"));
}
