#!/usr/bin/env python3
"""hilltasks.py - generated tasks whose answers stand far back in a long text (the families of RULER).

What:   writes JSON lines {"task", "prompt", "answers", "predict", "context_bytes", "seed"}; a model is right when the line it
        goes on with holds every answer in order. predict: bytes of the right answer and two more, as many tokens as a
        model of bytes needs.
Why:    whether selection or eviction harms a model shows in such answers, and they can be made in any number and length.
Who:    a person, before hill-eval; scripts/train imports make() for training. Standard library only.
Seeds:  the same options give the same bytes. Seeds >= HELD_OUT are never used in training.
Fails:  one line on stderr, exit 2, before anything is written.
"""
import argparse
import json
import random
import sys

HELD_OUT = 1_000_000_000
NOUNS = ("amber anchor apple arrow autumn badge bamboo banner barrel basin beacon bishop blanket bottle bridge bucket "
         "button cabin camel candle canyon carbon castle cedar cellar chapel cherry circle clover cobalt comet copper "
         "coral cotton cradle crystal dagger desert diamond dolphin dragon eagle echo ember engine fabric falcon feather "
         "fiddle finger flower forest fossil fountain galaxy garden garnet ginger glacier granite guitar hammer harbor "
         "hazel helmet hermit honey island ivory jacket jasmine jungle kettle kitten ladder lantern laurel leather lemon "
         "lizard lotus magnet maple marble meadow melon mirror monkey mountain needle nickel oasis ocean olive orange "
         "orchid otter oyster paddle palace panther paper pebble pencil pepper pigeon pillow planet pocket poppy prairie "
         "pumpkin puzzle quartz rabbit raven ribbon river rocket saddle salmon sapphire shadow silver spider spruce "
         "summit sunset temple thunder tiger timber tulip tunnel turtle valley velvet violet walnut willow window winter "
         "wizard yellow zebra zephyr").split()
NAMES = ("Ada Alan Alma Anton Basil Bella Boris Bruno Carla Cecil Clara Conrad Daria Denis Edgar Elena Emil Erik Felix "
         "Flora Frida Georg Greta Hanna Hugo Ida Igor Irene Ivan Jakob Jonas Judith Karl Klara Leo Linda Lukas Magda "
         "Marco Maria Martin Milan Nadia Nora Olga Oscar Otto Paula Pedro Petra Rita Robert Rosa Samuel Sara Simon Sofia "
         "Stefan Tamara Thomas Ulrich Vera Victor Viola Walter Wanda Xenia Yvonne Zora").split()
CITIES = ("Athens Bergen Berlin Bern Boston Bruges Cairo Cork Delhi Denver Dublin Geneva Genoa Ghent Hanoi Havana Kyoto "
          "Lagos Leeds Lima Lisbon London Lyon Madrid Malmo Manila Milan Moscow Munich Nairobi Naples Odessa Oslo Oxford "
          "Paris Porto Prague Quito Riga Rome Seoul Sofia Sydney Tallinn Tokyo Toledo Turin Utrecht Venice Vienna Warsaw "
          "Zagreb Zurich").split()
NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ",
         "Rain fell on the old road. Nobody came by. The lamps were lit early. A dog barked twice. ",
         "Bread was cheap that year. The mill stood still. The river ran high and brown. Geese flew over. ")


def number(rng):
    return str(rng.randrange(10 ** 4, 10 ** 6))


def word(rng, low=4, high=6):
    return "".join(rng.choice("bcdfghjklmnprstvwz" if i % 2 == 0 else "aeiou") for i in range(rng.randint(low, high)))


def passkey(rng, room):
    key = number(rng)
    return [f"The pass key is {key}. Remember it. {key} is the pass key."], [
        ("What is the pass key? The pass key is", [key])]


def keys(rng, room):
    count = max(2, min(24, room // 160))
    names = rng.sample(NOUNS, count)
    values = [number(rng) for _ in names]
    facts = [f"The special number for {n} is {v}." for n, v in zip(names, values)]
    asked = rng.sample(range(count), min(count, 3))
    return facts, [(f"What is the special number for {names[i]}? The special number for {names[i]} is", [values[i]])
                   for i in asked]


def values(rng, room):
    name = rng.choice(NOUNS)
    found = [number(rng) for _ in range(rng.randint(2, 4))]
    after = [f"then {name}{i}" for i in range(2, len(found) + 1)] + ["the end"]
    facts = [f"Note: {name}{i}={v}, {then}." for i, (v, then) in enumerate(zip(found, after), 1)]
    for other in rng.sample([n for n in NOUNS if n != name], max(1, min(8, room // 300))):
        i = rng.randint(1, 4)
        facts.insert(rng.randrange(len(facts) + 1), f"Note: {other}{i}={number(rng)}, then {other}{i + 1}.")
    # The answer names each value's place itself: several look-ups in one line.
    text = ", then ".join(v if i == 1 else f"{name}{i}={v}" for i, v in enumerate(found, 1)) + ", the end."
    return facts, [(f"List the values of {name}: {name}1=", found, text)]


def variables(rng, room):
    facts, asked = [], []
    for _ in range(max(1, min(6, room // 250))):
        chain = ["".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(4)) for _ in range(rng.randint(2, 4))]
        value = number(rng)
        facts.append(f"VAR {chain[0]} = {value}.")
        facts += [f"VAR {b} = {a}." for a, b in zip(chain, chain[1:])]
        steps = list(reversed(chain))
        # The answer walks the chain: each step is one look-up.
        asked.append((f"Trace {steps[0]}: {steps[0]} =", [" = ".join(steps[1:] + [value])]))
    return facts, rng.sample(asked, min(len(asked), 2))


def copy(rng, room):
    title = rng.choice(NOUNS)
    text = " ".join(word(rng) for _ in range(max(4, min(20, room // 60))))
    return [f"Text {title}: {text}."], [(f"Repeat text {title}. Text {title}:", [text])]


def frequent(rng, room):
    pool = list(dict.fromkeys(word(rng) for _ in range(max(3, min(12, room // 100)))))
    most = pool[0]
    listed = [most] * max(6, min(40, room // 40)) + [w for w in pool[1:] for _ in range(rng.randint(1, 3))]
    rng.shuffle(listed)
    facts = [f"Word: {w}." for w in listed]
    return facts, [("Which word is the most frequent? It is", [most])]


def question(rng, room):
    count = max(2, min(20, room // 160))
    people, cities = rng.sample(NAMES, count), [rng.choice(CITIES) for _ in range(count)]
    facts = [f"The home of {p} is {c}." for p, c in zip(people, cities)]
    for p in people[:count // 2]:
        facts.insert(rng.randrange(len(facts) + 1), f"{p} once saw {rng.choice(CITIES)}.")  # a city that is not the answer
    asked = rng.sample(range(count), min(count, 3))
    return facts, [(f"Where does {people[i]} live? The home of {people[i]} is", [cities[i]]) for i in asked]


TASKS = {"passkey": passkey, "keys": keys, "values": values, "variables": variables, "copy": copy,
         "frequent": frequent, "question": question}


def spread(rng, facts, hay):
    """Put the facts, in their order, at random line or sentence ends of the hay."""
    ends = [i + 1 for i in range(len(hay) - 1) if hay[i] == "\n" or hay[i:i + 2] == ". "]
    cuts = sorted(rng.choice(ends) if ends else len(hay) for _ in facts)
    parts, at = [], 0
    for cut, fact in zip(cuts, facts):
        parts += [(hay[at:cut], False), ("\n" + fact + "\n", True)]
        at = cut
    return parts + [(hay[at:], False)]


def make(task, seed, size, haystack=None, questions=99):
    """-> list of (text, kind), kind one of hay, fact, ask, answer, and the answers; `size` bytes or a little less in all.
    haystack: None for repeated sentences, or a function (rng, bytes) -> str."""
    rng = random.Random(f"{task}/{seed}")
    facts, asked = TASKS[task](rng, size)
    asked = [(ask, answers, text[0] if text else " " + ", ".join(answers) + ".") for ask, answers, *text in asked[:questions]]
    fixed = sum(len(f) + 2 for f in facts) + sum(len(ask) + 1 + len(text) for ask, _, text in asked) + 1
    room = max(0, size - fixed)
    if haystack:
        hay = haystack(rng, room)
    else:
        noise = rng.choice(NOISE)
        hay = (noise * (room // len(noise) + 1))[:room]
    parts = [(text, "fact" if fact else "hay") for text, fact in spread(rng, facts, hay)]
    for ask, _, text in asked:
        parts += [("\n" + ask, "ask"), (text, "answer")]
    return parts, [answers for _, answers, _ in asked]


def one(task, seed, size, haystack=None):
    """-> prompt, answers, the whole text of the right answer; one question"""
    parts, answers = make(task, seed, size, haystack, 1)
    return "".join(text for text, _ in parts[:-1]), answers[0], parts[-1][0]


def text_haystack(path):
    text = "".join(c for c in open(path, encoding="utf-8").read().replace("\x1e", "\n") if ord(c) < 128)

    def take(rng, size):
        start = rng.randrange(max(1, len(text) - size))
        return text[start:start + size]
    return take


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", action="append", choices=sorted(TASKS), help="may be repeated; default: all")
    parser.add_argument("--count", type=int, default=20, help="questions per task (default 20)")
    parser.add_argument("--bytes", type=int, default=2048, help="length of the prompt (default 2048)")
    parser.add_argument("--seed", type=int, default=HELD_OUT, help=f"default {HELD_OUT}, the first held-out one")
    parser.add_argument("--text", help="hide the facts in this UTF-8 text instead of in repeated sentences")
    args = parser.parse_args()
    if args.bytes < 256 or args.count < 1:
        parser.error("--bytes must be at least 256 and --count at least 1")
    try:
        hay = text_haystack(args.text) if args.text else None
    except (OSError, UnicodeDecodeError) as e:
        parser.error(f"cannot read {args.text}: {e}")
    for task in args.task or TASKS:
        for seed in range(args.seed, args.seed + args.count):
            prompt, answers, text = one(task, seed, args.bytes, hay)
            print(json.dumps({"task": task, "prompt": prompt, "answers": answers, "predict": len(text) + 2,
                              "context_bytes": len(prompt), "seed": seed}))


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(0)
