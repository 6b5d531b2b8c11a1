// Turn Slack's mrkdwn and the Markdown of streamed messages into nodes.
import { h } from "./dom.js";
import { store } from "./store.js";

export const EMOJI = {
  "+1": "👍",
  thumbsup: "👍",
  "-1": "👎",
  eyes: "👀",
  white_check_mark: "✅",
  heavy_check_mark: "✔️",
  x: "❌",
  tada: "🎉",
  heart: "❤️",
  rocket: "🚀",
  fire: "🔥",
  thinking_face: "🤔",
  hourglass: "⌛",
  hourglass_flowing_sand: "⏳",
  wave: "👋",
  pray: "🙏",
  clap: "👏",
  smile: "😄",
  slightly_smiling_face: "🙂",
  joy: "😂",
  cry: "😢",
  warning: "⚠️",
  bulb: "💡",
  robot_face: "🤖",
  zap: "⚡",
  100: "💯",
  bug: "🐛",
  gear: "⚙️",
  memo: "📝",
  mag: "🔍",
  question: "❓",
  exclamation: "❗",
  no_entry: "⛔",
  stopwatch: "⏱️",
  repeat: "🔁",
  speech_balloon: "💬",
  star: "⭐",
  sparkles: "✨",
  raised_hands: "🙌",
};

// A machine without a font of emoji draws the same box for all. Then their names are shown.
const pen = document.createElement("canvas").getContext("2d");
pen.font = "20px sans-serif";
const [drawn, box] = ["👀", "\u{1fffe}"].map((sign) => pen.measureText(sign).width);

// Own names only: `:constructor:` is no emoji.
const known = (name) => (drawn !== box && Object.hasOwn(EMOJI, name) ? EMOJI[name] : null);
export const emoji = (name) => known(name.split("::")[0]) || `:${name}:`;
const unescape = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

// A message may have 40,000 characters. The expressions take time in proportion to the length: after a rule's opening,
// the opening cannot occur again, or the rest is bounded. So a text full of openings is not scanned anew from each.
const RULES = [
  [/```\n?([\s\S]*?)```/, (m) => h("pre", {}, unescape(m[1]))],
  [/`([^`\n]+)`/, (m) => h("code", {}, unescape(m[1]))],
  [/<@([A-Z0-9]+)(?:\|[^<>]*)?>/, (m) => mention(m[1])],
  [
    /<#([A-Z0-9]+)(?:\|([^<>]*))?>/,
    (m) => h("span", { class: "mention" }, "#", m[2] || store.channels.get(m[1])?.name || m[1]),
  ],
  [/<!(here|channel|everyone)(?:\|[^<>]*)?>/, (m) => h("span", { class: "mention" }, "@", m[1])],
  [/<(https?:\/\/[^|<>]+)(?:\|([^<>]+))?>/, (m) => link(m[1], m[2] || m[1])],
  [/\[([^[\]\n]+)\]\((https?:\/\/[^)\s]{1,2000})\)/, (m) => link(m[2], m[1])],
  [/\*\*([^\n]+?)\*\*/, (m) => h("strong", {}, inline(m[1]))],
  [/(?<![\w*])\*([^\s*](?:[^*\n]*[^\s*])?)\*(?![\w*])/, (m) => h("strong", {}, inline(m[1]))],
  [/(?<!\w)_([^\s_](?:[^_\n]*[^\s_])?)_(?!\w)/, (m) => h("em", {}, inline(m[1]))],
  [/(?<!\w)~([^\s~](?:[^~\n]*[^\s~])?)~(?!\w)/, (m) => h("s", {}, inline(m[1]))],
  [
    /:([a-z0-9_+'-]+):/,
    (m) => (known(m[1]) ? h("span", { role: "img", "aria-label": m[1] }, known(m[1])) : m[0]),
  ],
];

// All rules are one expression, so that a text is read once. A rule's groups follow the group of its whole match.
let groups = 0;
const MAKERS = RULES.map(([pattern, make]) => {
  const at = groups + 1;
  groups += new RegExp(`${pattern.source}|`).exec("").length;
  return { at, make };
});
const ANY = new RegExp(RULES.map(([pattern]) => `(${pattern.source})`).join("|"), "g");

function link(url, text) {
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, unescape(text));
}

function mention(id) {
  const user = store.users.get(id);
  const name = user ? (user.is_bot ? user.real_name : user.profile.display_name) : id;
  return h("span", { class: id === store.user ? "mention me" : "mention" }, `@${name}`);
}

export function plainText(message) {
  return unescape(
    message.text.replace(/<@([A-Z0-9]+)>/g, (_, id) => `@${store.users.get(id)?.profile.display_name || id}`),
  );
}

export function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(ANY)) {
    const { at, make } = MAKERS.find(({ at }) => match[at] !== undefined);
    nodes.push(unescape(text.slice(end, match.index)), make(match.slice(at)));
    end = match.index + match[0].length;
  }
  nodes.push(unescape(text.slice(end)));
  return nodes;
}

// Return the text of a plain_text object.
export const plain = (object) =>
  (object?.text || "").replace(/:([a-z0-9_+'-]+):/g, (code, name) => known(name) || code);

// Return the nodes of a text object.
export const textOf = (object) =>
  !object ? [] : object.type === "plain_text" ? [plain(object)] : rich(object.text);

// Read paragraphs, quotes and lists line by line. Read fences first, because they span lines.
export function rich(text) {
  const parts = text.split(/(```[\s\S]*?```)/);
  return parts.flatMap((part) => (part.startsWith("```") ? inline(part) : lines(part)));
}

function lines(text) {
  return text.split("\n").flatMap((line, at, all) => {
    const quote = /^(?:&gt;|>) ?(.*)/.exec(line);
    const heading = /^#{1,6} (.+)/.exec(line);
    const item = /^\s*[-*•] (.+)/.exec(line);
    if (quote) return [h("blockquote", {}, inline(quote[1]))];
    if (heading) return [h("p", { class: "headline" }, inline(heading[1]))];
    if (item) return [h("p", { class: "item" }, inline(item[1]))];
    return [...inline(line), at < all.length - 1 ? h("br") : ""];
  });
}
