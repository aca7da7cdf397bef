"""What goes on, once a second: redrawn on a terminal, one plain line otherwise."""

import shutil
import sys


class View:
    def __init__(self, title):
        self.title = title
        self.is_terminal = sys.stdout.isatty()
        self.height = 0

    def show(self, passed, queue, budget, books):
        bands = ", ".join(f"{name} {count}" for name, count in queue["bands"].items() if count) or "none"
        totals, oldest = queue["totals"], seconds(queue["oldest_age_ms"])
        wait, coming = seconds(queue["waits"]["mean_ms"]), budget["next_tokens"]
        answered = len(books.asked) - len(books.waiting)
        if not self.is_terminal:
            print(
                f"{passed:3.0f} s  pending {queue['pending']} ({bands}), running {queue['running']}, oldest {oldest}, "
                f"average wait {wait} | tokens {budget['tokens']}, reserved {budget['reserved']}, "
                f"used today {budget['used_today']} | asked {len(books.asked)}, answered {answered}",
                flush=True,
            )
            return
        more = f", {coming['tokens']} more to come" if coming else ""
        lines = [
            f"{self.title}   {passed:.0f} s",
            "",
            f"queue    pending {queue['pending']} ({bands})   running {queue['running']}   oldest {oldest}   average wait {wait}",
            f"budget   tokens {budget['tokens']}   reserved {budget['reserved']}   used today {budget['used_today']}{more}",
            f"asked    {len(books.asked)}: {totals['created']} made a job, {totals['joined']} joined one, "
            f"{totals['cache_hits']} were answered from the cache",
            f"answers  {answered}, of which the latest",
            *(f"         {line}" for line in books.latest),
        ]
        # Back to the first line, and each line anew to its end. A line that is too long would take two.
        width = shutil.get_terminal_size().columns
        back = f"\x1b[{self.height}A" if self.height else ""
        print(back + "".join(f"{line[:width]}\x1b[K\n" for line in lines), end="", flush=True)
        self.height = len(lines)


def seconds(ms):
    return "–" if ms is None else f"{ms / 1000:.1f} s"
