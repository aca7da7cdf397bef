"""A small API that sells tokens, to have something to be careful with.

It knows products and deals. A search costs 5 tokens, a product 1, a product with its offers 2, the token count nothing. Tokens
come at a rate, up to a bound. Who has too few is answered 429. Every answer says what is left and when more come. Now and
then it breaks, and now and then somebody else uses the same account, so that the count jumps.

    GET /search?category=phones      GET /products?ids=p1,p2[&offers=1]      GET /tokens      GET /sold
"""

import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

CATEGORIES = ["phones", "laptops", "toys", "kitchen", "garden", "books"]
FIRST = 20
MOST = 60
REFILL = 6
REFILL_EVERY = 1.0
# A search in so many breaks, after it was paid for.
BREAKS_ONE_IN = 12
# Somebody else uses tokens, about so often, in seconds.
OTHERS_EVERY = 6.0


class Account:
    """The tokens of one customer."""

    def __init__(self):
        self.lock = threading.Lock()
        self.tokens, self.sold, self.refused, self.taken_by_others = FIRST, 0, 0, 0
        self.next_refill = time.monotonic() + REFILL_EVERY
        self.next_other = time.monotonic() + OTHERS_EVERY

    def pay(self, cost):
        """Whether there were enough, and what is to be told."""
        with self.lock:
            now = time.monotonic()
            while self.next_refill <= now:
                self.tokens = min(MOST, self.tokens + REFILL)
                self.next_refill += REFILL_EVERY
            if self.next_other <= now:
                taken = min(self.tokens, 7)
                self.tokens, self.taken_by_others = self.tokens - taken, self.taken_by_others + taken
                self.next_other = now + OTHERS_EVERY
            paid = cost <= self.tokens
            if paid:
                self.tokens, self.sold = self.tokens - cost, self.sold + cost
            else:
                self.refused += 1
            refill_in = round(1000 * (self.next_refill - now))
            return paid, {"tokensLeft": self.tokens, "refillIn": refill_in, "tokensUsed": cost if paid else 0}


ACCOUNT = Account()


def product(name):
    """The same product has another price every time."""
    number = int(name[1:])
    old = 10 + number * 7 % 490
    discount = random.choice([0, 5, 10, 20, 30, 40, 60])
    return {"id": name, "title": f"Product {number}", "price": round(old * (100 - discount) / 100, 2), "discount": discount}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked = urlparse(self.path)
        fields = {name: values[0] for name, values in parse_qs(asked.query).items()}
        if asked.path == "/tokens":
            self.reply(200, ACCOUNT.pay(0)[1])
        elif asked.path == "/search":
            self.search(fields.get("category", ""))
        elif asked.path == "/products":
            self.products(fields.get("ids", "").split(","), "offers" in fields)
        elif asked.path == "/sold":
            sold = {"sold": ACCOUNT.sold, "refused": ACCOUNT.refused, "others": ACCOUNT.taken_by_others}
            self.reply(200, sold)
        else:
            self.reply(404, {"error": "no such address"})

    def search(self, category):
        if category not in CATEGORIES:
            self.reply(404, {"error": f"there is no category '{category}'", **ACCOUNT.pay(0)[1]})
            return
        paid, told = ACCOUNT.pay(5)
        if not paid:
            self.reply(429, told)
            return
        time.sleep(random.uniform(0.2, 0.5))
        if random.randrange(BREAKS_ONE_IN) == 0:
            self.reply(500, {"error": "the search broke", **told})
            return
        first = CATEGORIES.index(category) * 100
        items = [product(f"p{number}") for number in random.sample(range(first, first + 100), 20)]
        self.reply(200, {"items": items, **told})

    def products(self, names, with_offers):
        paid, told = ACCOUNT.pay(len(names) * (2 if with_offers else 1))
        if not paid:
            self.reply(429, told)
            return
        time.sleep(random.uniform(0.05, 0.2))
        items = [product(name) for name in names]
        if with_offers:
            for item in items:
                item["offers"] = [round(item["price"] * factor, 2) for factor in (1, 1.04, 1.1)]
        self.reply(200, {"items": items, **told})

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_address[1]}"}), flush=True)
    # Ends with whoever started it.
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
