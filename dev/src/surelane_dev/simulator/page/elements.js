// Show the interactive elements of Block Kit. Each keeps its value in the form of its message or view.
import { combobox } from "./combobox.js";
import { confirmed } from "./confirm.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { menuButton } from "./menu.js";
import { store } from "./store.js";
import { plain, textOf } from "./text.js";

const TYPING_PAUSE = 200; // milliseconds without a key before the app is asked for options
const ICONS = new Set(["trash"]);

const focusOf = (block, element) => `e-${block.block_id}-${element.action_id}`;
const optionsOf = (element) =>
  (element.option_groups || [{ options: element.options || [] }]).map((group) => ({
    label: plain(group.label),
    options: (group.options || []).map(choiceOf),
  }));
const choiceOf = (option) => ({
  value: String(option.value),
  text: plain(option.text),
  description: plain(option.description),
});
const flat = (groups) => groups.flatMap((group) => group.options);

// Return the element's node. `labelled` is {id} of an input's label, or {label} elsewhere.
export function element(block, part, form, labelled = {}) {
  const [shape, more] = SHAPES[part.type] || [];
  if (!shape) return h("span", { class: "note" }, `[${part.type}]`);
  const inInput = block.type === "input";
  const name = labelled.label || plain(part.placeholder) || plain(part.text) || part.action_id;
  let node = null;
  const act = async (value) => {
    node.parentElement?.querySelector(":scope > .unanswered")?.remove();
    const why = await form.act(block, part, value);
    if (why) node.after(unanswered(why));
  };
  const changed = async (value) => {
    form.enter(block, part, value);
    if (inInput ? block.dispatch_action : await confirmed(part.confirm)) act(value);
  };
  const focus = focusOf(block, part);
  node = shape({ block, part, form, act, changed, name, id: labelled.id, focus, more });
  return node;
}

// Slack shows a triangle beside a button whose app did not acknowledge in time.
function unanswered(why) {
  const text = `The app did not acknowledge: ${why}`;
  return h("span", { class: "unanswered", role: "img", "aria-label": text, title: text }, icon("warn"));
}

// Texts, numbers, dates and times are lines of text.
function line({ block, part, form, act, name, id, focus, more }) {
  const was = form.entered(block, part) ?? initialText(part);
  const input = part.multiline ? h("textarea", { rows: 4, id }) : h("input", { id, ...more });
  input.value = part.type === "datetimepicker" ? localTime(was) : was;
  input.placeholder = plain(part.placeholder);
  input.dataset.focus = focus;
  if (!id) input.setAttribute("aria-label", name);
  const value = () =>
    part.type === "datetimepicker" && input.value
      ? String(Math.round(new Date(input.value).getTime() / 1000))
      : input.value;
  const isText = !/picker$/.test(part.type);
  const sends = part.dispatch_action_config?.trigger_actions_on || ["on_enter_pressed"];
  input.addEventListener("input", () => {
    form.enter(block, part, value());
    const at = isText ? sends.includes("on_character_entered") : true;
    if (at && (block.type !== "input" || block.dispatch_action)) act(value());
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || !block.dispatch_action || !isText) return;
    if (!sends.includes("on_enter_pressed")) return;
    event.preventDefault();
    act(value());
  });
  return input;
}

const initialText = (part) =>
  String(part.initial_value ?? part.initial_date ?? part.initial_time ?? part.initial_date_time ?? "");

function localTime(seconds) {
  if (!seconds) return "";
  const at = new Date(seconds * 1000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

// One of few: the browser's own menu.
function select({ block, part, form, changed, name, id, focus, more }) {
  const groups = more ? [{ options: more(part) }] : optionsOf(part);
  const entry = (option) => h("option", { value: option.value }, option.text);
  const menu = h(
    "select",
    {
      id,
      "aria-label": id ? undefined : name,
      dataset: { focus },
      onchange: () => changed(menu.value),
    },
    h("option", { value: "" }, plain(part.placeholder) || "Select an option"),
    groups.map((group) =>
      group.label
        ? h("optgroup", { label: group.label }, group.options.map(entry))
        : group.options.map(entry),
    ),
  );
  menu.value = form.entered(block, part) ?? initialOf(part)[0] ?? "";
  return menu;
}

function initialOf(part) {
  const ids = part.initial_user || part.initial_channel || part.initial_conversation;
  if (ids) return [ids];
  const several = part.initial_users || part.initial_channels || part.initial_conversations;
  if (several) return several;
  const options = part.initial_option ? [part.initial_option] : part.initial_options || [];
  return options.map((option) => String(option.value));
}

// Several, or many with a search in this page.
function search({ block, part, form, changed, name, id, focus, more }) {
  const groups = () => (more ? [{ options: more(part) }] : optionsOf(part));
  const load = (query) => {
    const wanted = query.toLowerCase();
    const found = groups().map((group) => ({
      ...group,
      options: group.options.filter(({ text }) => text.toLowerCase().includes(wanted)),
    }));
    return { groups: found.filter((group) => group.options.length) };
  };
  const values = form.entered(block, part) ?? initialOf(part);
  const chosen = flat(groups()).filter(({ value }) => values.includes(value));
  return combo({ part, name, id, focus, load, chosen, changed });
}

// Options that the app gives while a person types.
function external({ block, part, form, changed, name, id, focus }) {
  const known = new Map(
    [part.initial_option, ...(part.initial_options || [])].filter(Boolean).map((o) => [String(o.value), o]),
  );
  const remembered = (form.offered ||= {});
  const key = focusOf(block, part);
  remembered[key] = new Map([...known, ...(remembered[key] || [])]);
  const load = async (query) => {
    try {
      const answer = await form.options(block, part, query);
      if (answer.type_more !== undefined)
        return { note: `Type ${answer.type_more} or more characters to search.` };
      if (answer.unusable) return { note: `The app gave no options: ${answer.unusable}` };
      const groups = optionsOf(answer);
      for (const option of (answer.option_groups || [answer]).flatMap((group) => group.options))
        remembered[key].set(String(option.value), option);
      return { groups };
    } catch (error) {
      return { note: error.message };
    }
  };
  const values = [form.entered(block, part) ?? initialOf(part)].flat();
  const chosen = values
    .map((value) => remembered[key].get(value))
    .filter(Boolean)
    .map(choiceOf);
  return combo({ part, name, id, focus, load, chosen, changed, pause: TYPING_PAUSE });
}

function combo({ part, changed, ...rest }) {
  const multiple = part.type.startsWith("multi_");
  const change = (chosen) => {
    const values = chosen.map(({ value }) => value);
    changed(multiple ? values : values[0] || "");
  };
  const { name: label, ...given } = rest;
  return combobox({
    ...given,
    label,
    multiple,
    most: part.max_selected_items,
    placeholder: plain(part.placeholder),
    change,
  }).node;
}

// Checkboxes and radio buttons.
function boxes({ block, part, form, changed, name, id, focus, more: type }) {
  const values = new Set([form.entered(block, part) ?? initialOf(part)].flat());
  const group = h("div", {
    class: "boxes",
    role: type === "radio" ? "radiogroup" : "group",
    "aria-label": id ? undefined : name,
    "aria-labelledby": id ? `${id}-label` : undefined,
    dataset: { group: id },
  });
  const read = () => [...group.querySelectorAll("input:checked")].map((input) => input.value);
  group.append(
    ...(part.options || []).map((option, at) => {
      const input = h("input", {
        type,
        name: focus,
        value: String(option.value),
        dataset: { focus: `${focus}-${at}` },
        onchange: () => changed(type === "radio" ? read()[0] : read()),
      });
      input.checked = values.has(String(option.value));
      return h(
        "label",
        { class: "box" },
        input,
        h("span", {}, textOf(option.text), option.description && h("small", {}, textOf(option.description))),
      );
    }),
  );
  return group;
}

const press = (part, act, value) => async (event) => {
  const button = event.currentTarget;
  if (!(await confirmed(part.confirm))) return;
  button.disabled = true;
  await act(value);
  button.disabled = false;
};

function button({ part, act, focus }) {
  const pressed = press(part, act);
  return h(
    "button",
    {
      type: "button",
      class: `block-button ${part.style || ""}`,
      "aria-label": part.accessibility_label,
      dataset: { focus },
      onclick: (event) => {
        if (/^https?:/.test(part.url || "")) open(part.url, "_blank", "noopener");
        pressed(event);
      },
    },
    plain(part.text) || part.action_id,
  );
}

function iconButton({ part, act, focus }) {
  return h(
    "button",
    {
      type: "button",
      class: "icon-button",
      "aria-label": part.accessibility_label || plain(part.text),
      title: plain(part.text),
      dataset: { focus },
      onclick: press(part, act),
    },
    ICONS.has(part.icon) ? icon(part.icon) : plain(part.text),
  );
}

function feedback({ block, part, form, act, focus }) {
  const one = (which, sign) => {
    const answer = part[which];
    const chosen = form.entered(block, part) === answer.value;
    return h(
      "button",
      {
        type: "button",
        class: "icon-button",
        "aria-label": answer.accessibility_label || plain(answer.text),
        "aria-pressed": String(chosen),
        title: plain(answer.text),
        dataset: { focus: `${focus}-${which}` },
        onclick: (event) => {
          form.enter(block, part, answer.value);
          for (const each of event.currentTarget.parentElement.children)
            each.setAttribute("aria-pressed", String(each === event.currentTarget));
          press(part, act, answer.value)(event);
        },
      },
      sign,
    );
  };
  return h(
    "span",
    { class: "feedback", role: "group", "aria-label": "Feedback" },
    one("positive_button", icon("up")),
    one("negative_button", icon("down")),
  );
}

function overflow({ part, changed, focus }) {
  return menuButton({
    label: "More options",
    face: icon("overflow"),
    className: "block-button",
    focus,
    items: () =>
      (part.options || []).map((option) => ({
        label: plain(option.text),
        hint: plain(option.description),
        run: () => changed(String(option.value)),
      })),
  });
}

const people = () =>
  [...store.users.values()].filter((user) => user.team_id === store.team.id).map((user) => ({ value: user.id, text: user.real_name, description: "" }));
const channels = () =>
  [...store.channels.values()]
    .filter((channel) => !channel.is_im)
    .map((channel) => ({ value: channel.id, text: `# ${channel.name}`, description: "" }));
const conversations = () => [
  ...channels(),
  ...[...store.channels.values()]
    .filter((channel) => channel.is_im && channel.user === store.user)
    .map((channel) => ({ value: channel.id, text: store.bot.real_name, description: "" })),
];

const SHAPES = {
  button: [button],
  icon_button: [iconButton],
  feedback_buttons: [feedback],
  overflow: [overflow],
  plain_text_input: [line],
  rich_text_input: [(given) => line({ ...given, part: { ...given.part, multiline: true } })],
  email_text_input: [line, { type: "email" }],
  url_text_input: [line, { type: "url" }],
  number_input: [line, { inputmode: "decimal" }],
  datepicker: [line, { type: "date" }],
  timepicker: [line, { type: "time" }],
  datetimepicker: [line, { type: "datetime-local" }],
  static_select: [select],
  users_select: [select, people],
  channels_select: [select, channels],
  conversations_select: [select, conversations],
  external_select: [external],
  multi_static_select: [search],
  multi_users_select: [search, people],
  multi_channels_select: [search, channels],
  multi_conversations_select: [search, conversations],
  multi_external_select: [external],
  checkboxes: [boxes, "checkbox"],
  radio_buttons: [boxes, "radio"],
};
