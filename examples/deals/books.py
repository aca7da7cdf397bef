"""Books on every waiter: who asked, and who was answered how often. Each must get exactly one answer."""

from collections import Counter, deque


class Books:
    def __init__(self):
        self.asked = {}
        self.answers = Counter()
        self.by = Counter()
        self.statuses = Counter()
        self.items = 0
        self.latest = deque(maxlen=8)
        self.strangers = []

    def note(self, line, now):
        """One line of a client: somebody asked, or was answered."""
        if "asked" in line:
            self.asked[line["asked"]] = {**line, "at": now}
        elif "answer" in line:
            self._answered(line["answer"], now)

    def _answered(self, answer, now):
        waiter = answer["waiter"]
        asked = self.asked.get(waiter)
        if asked is None:
            self.strangers.append(waiter)
            return
        self.answers[waiter] += 1
        self.by[f"{asked['client']}, {asked['by']}"] += 1
        self.statuses[answer["status"]] += 1
        items = len(answer.get("result") or [])
        self.items += items
        what = f"{items:2} items" if answer["status"] == "done" else f"{answer['status']}: {answer.get('error')}"
        took = f"{now - asked['at']:5.2f} s"
        self.latest.append(f"{asked['plan']:8} {waiter:15} {took}  {what}  ({asked['client']}, {asked['by']})")

    @property
    def waiting(self):
        """Those who have no answer yet."""
        return [waiter for waiter in self.asked if not self.answers[waiter]]

    @property
    def wrong(self):
        """What must not be, in words. Nothing if all is well."""
        faults = [f"{waiter} got no answer" for waiter in self.waiting]
        faults += [f"{waiter} got {count} answers" for waiter, count in self.answers.items() if count > 1]
        faults += [f"{waiter} got an answer and had not asked" for waiter in self.strangers]
        return faults
