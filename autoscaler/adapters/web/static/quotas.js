// The table of quotas: how many devices each owner may use, and what is lent and borrowed. It is hidden without quotas.

import { Folded } from "./folded.js";
import { count, total } from "./format.js";

const COLUMNS = [
  { title: "Quota", text: ({ quota, flavor }) => [quota, flavor].filter(Boolean).join(" · "), note: ({ resource }) => resource },
  { title: "Cohort", text: ({ cohort }) => cohort, note: limits },
  { title: "Nominal", number: true, text: ({ nominal }) => count(nominal) },
  { title: "Ours", number: true, text: ({ ours }) => count(ours) },
  { title: "Others", number: true, text: ({ others }) => count(others) },
  { title: "Borrowed", number: true, text: ({ borrowed }) => count(borrowed) },
  { title: "Lent", number: true, text: ({ lent }) => count(lent) },
];

export const quotas = (box) => new Folded(box, { path: "/api/v1/quotas", field: "quotas", columns: COLUMNS, summary });

function summary(rows) {
  const borrowed = total(rows, (quota) => quota.borrowed);
  const silent = rows.filter((quota) => quota.borrowed == null).length;
  const unknown = silent ? `: unknown for ${count(silent)} of them` : "";
  return `Quotas: ${count(rows.length)}; ${count(borrowed)} devices are borrowed${unknown}`;
}

function limits({ cohort, borrowing_limit, lending_limit }) {
  if (!cohort) return "";
  const most = borrowing_limit == null ? "any number" : `at most ${count(borrowing_limit)}`;
  return `borrows ${most}, lends at most ${count(lending_limit)}`;
}
