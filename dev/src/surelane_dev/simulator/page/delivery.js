// Show an event's delivery: a line under its message, with every attempt inside.
import { clock, h, toast } from "./dom.js";
import { request, store } from "./store.js";

const open = new Set();

const WORDS = {
  http_timeout: "no answer within 3 s",
  http_error: "error",
  connection_failed: "no connection",
  ssl_error: "TLS failed",
  too_many_redirects: "too many redirects",
  unknown_error: "failed",
  posting_is_off: "not sent: the app is a real one",
};

const QUEUE = { pending: "waiting", completed: "done" };

export function summary(delivery) {
  const last = delivery.attempts.at(-1);
  const retries = delivery.attempts.filter((attempt) => attempt.retry_num).length;
  const again = retries ? ` · ${retries} ${retries === 1 ? "retry" : "retries"}` : "";
  const why = last?.problem ? `${last.status || ""} ${WORDS[last.problem] || last.problem}`.trim() : "";
  switch (delivery.state) {
    case "held":
      return ["held", "held back, to arrive out of order"];
    case "sending":
      return ["sending", last ? `${why || "sent"} · sending again` : "sending"];
    case "delivered":
      return [
        "delivered",
        `${last.status} in ${last.ms < 10 ? last.ms.toFixed(1) : Math.round(last.ms)} ms${again}`,
      ];
    case "retrying":
      return [
        "retrying",
        `${why} · next try ${delivery.next_at ? `at ${new Date(delivery.next_at * 1000).toLocaleTimeString([], { hourCycle: "h23" })}` : "at once"}${again}`,
      ];
    default:
      return ["failed", `${why} · given up${again}${last?.no_retry ? " (told not to retry)" : ""}`];
  }
}

export function jobMark(job) {
  if (!job) return null;
  const tries = job.attempts > 1 ? ` · attempt ${job.attempts}` : "";
  return h(
    "span",
    { class: `job ${job.status}`, title: job.error || `event ${job.id} in the queue` },
    `queue: ${QUEUE[job.status] || job.status}${tries}`,
  );
}

export function deliveryLine(delivery) {
  const [state, text] = summary(delivery);
  const toggle = (event) => {
    if (event.target.open) open.add(delivery.id);
    else open.delete(delivery.id);
  };
  return h(
    "details",
    { class: `delivery ${state}`, open: open.has(delivery.id), ontoggle: toggle },
    h(
      "summary",
      { dataset: { focus: `d-${delivery.id}` } },
      h("span", { class: "dot", "aria-hidden": "true" }),
      h("span", { class: "kind" }, delivery.kind),
      ` ${text}`,
      " ",
      jobMark(delivery.job),
    ),
    details(delivery),
  );
}

function details(delivery) {
  const again = async () => {
    try {
      await request("POST", `/control/deliveries/${delivery.id}/resend`, {});
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return h(
    "div",
    { class: "attempts" },
    h(
      "p",
      {},
      h("code", {}, delivery.id),
      delivery.job && h("span", {}, ` is event ${delivery.job.id} of the queue`),
    ),
    h(
      "ol",
      {},
      delivery.attempts.map((attempt) =>
        h(
          "li",
          {},
          `${clock(attempt.at)} `,
          attempt.retry_num ? h("b", {}, `retry ${attempt.retry_num} (${attempt.retry_reason}) `) : "first ",
          `→ ${attempt.status ?? "no answer"}${attempt.problem ? ` ${attempt.problem}` : ""} in ${attempt.ms} ms`,
        ),
      ),
    ),
    (delivery.job?.error || delivery.job?.reason) &&
      h("p", { class: "bad" }, [delivery.job.reason, delivery.job.error].filter(Boolean).join(": ")),
    h("button", { class: "small", onclick: again }, "Deliver it again"),
  );
}
