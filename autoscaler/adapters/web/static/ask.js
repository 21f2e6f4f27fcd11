// The one way to ask the daemon. Without a deadline a dead connection would hold an answer back for many minutes.

const DEADLINE_MS = 5000;

/** Return whether the daemon agreed, and its JSON; raises where there is no answer, or none of a daemon's. */
export async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(DEADLINE_MS) });
  return { ok: answer.ok, body: await answer.json() };
}
