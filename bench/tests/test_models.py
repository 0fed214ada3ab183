"""bench/models: pages are brought once, no rule is faster than the links, and knowing more never costs."""

import unittest

from models import wave_order


class WaveOrder(unittest.TestCase):
    def setUp(self):
        self.times = {
            (layout, rule): wave_order.reached(layout, rule, waves=15, compute=1.0, seeds=1) for layout in wave_order.LAYOUTS for rule in wave_order.RULES
        }

    def test_nothing_is_faster_than_all_links_together(self):
        for what, time in self.times.items():
            self.assertGreater(time, 1.0, what)

    def test_what_asks_ahead_is_faster_than_what_does_not_and_most_with_all_knowledge(self):
        for layout in wave_order.LAYOUTS:
            demand, present, best = (self.times[layout, rule] for rule in ("on demand", "unknown", "one queue"))
            self.assertLess(present, demand, layout)
            self.assertLess(best, present, layout)

    def test_all_pages_are_brought_and_none_twice(self):
        for rule in wave_order.RULES.values():
            world = wave_order.World("hashed", rule, 4, 1.0, 7)
            sent = []
            send = world.send
            world.send = lambda node, page, sent=sent, send=send: (sent.append(page), send(node, page))
            world.run()
            self.assertEqual(sorted(sent), sorted(world.servers))

    def test_a_server_gives_each_page_under_way_an_equal_share(self):
        world = wave_order.World("striped", wave_order.on_demand, 2, 1.0, 0)
        for page in ((0, 0), (1, 0)):
            world.left[page] = 1.0
        # Each is a quarter on each of four links, which two share: together as much as all links.
        self.assertEqual(world.rates(), {(0, 0): 2.0, (1, 0): 2.0})


if __name__ == "__main__":
    unittest.main()
