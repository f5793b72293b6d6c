"""The words of printed pages: everyday ones, and invented names."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

NAMES = 1 / 7  # share of the words that are invented
HELD_OUT = 5  # one name in so many is never trained on
EVERYDAY = """
above across after again all almost along also always and animal answer any apple april around art ask at autumn
away back bag baker bank barn basket beach bear because bed bee before began behind bell below bench best better
between big bird black blue boat body bones book both bottom box boy branch bread bridge bright bring brother brown
build but butter by cabin cake call came camp can captain car care carry cart castle cat chair change cheap cheese
child church circle city class clean clear cliff clock close cloth cloud coal coast coat coffee cold color come
common cook copper corn corner could country cover cow crossing cup cut daily dark daughter day deep desert did
different do doctor dog door down draw dream dress drink drive dry duck dust each early earth east easy eat egg
eight empty end engine evening every eye face fact fall family far farm fast father feather feel few field fifth
find fine fire first fish five flat floor flour flower fly follow food foot forest found four free fresh friday
friend from front fruit full game garden gate gave get girl give glass go goat gold good grain grand grass great
green ground group grow had half hall hand harbour hard has hat have he head hear heart heavy help here high hill
his hold home honey horse hot hotel hour house how hundred ice if in inside iron island january jar job journey
july jump june just keep key kind king kitchen knife know lake lamp land large last late leaf learn leave left
lemon letter light like line lion list little live long look lost low lunch make man many map march market may
meadow measure meat meet metal middle might mile milk mill minute money month moon more morning most mother
mountain mouse move much music must name narrow near neck need never new next night nine no noon north nose not
nothing now number ocean october of off often oil old on once one onion open orange other our out oven over own
page paint paper park part past path pear pen pepper person piano piece pilot place plain plan plant plate play
point pond poor port potato pound price print public pull purple put queen question quick quiet quite rain ran
reach read ready red rest rice rich ride right ring river road rock roof room root rope rose round run sail salt
same sand saw say school sea second see seed sell send seven shade ship shoe shop short should show side silver
simple sing sister sit six sky sleep slow small smoke snow so soap some son song soon soup south space spring
square stand star start station still stone stop store storm story street strong such sugar summer sun supper
sure table tail take talk tall tea teach tell ten tent test than that the their them then there these they thing
think third this those three through ticket time to today tomorrow took tower town trade train travel tree true
try turn twelve two under until up use valley very village violin visit wagon wait walk wall want warm was watch
water wave way we week well went were west wet what wheat wheel when where which while white who whole why wide
wild will wind window winter wish with wolf woman wood wool word work world worn would write yard year yellow yes
yet you young zebra
"""
WORDS = tuple(EVERYDAY.split())
SYLLABLES = "b br c d f g gl h j k l m n p qu r s st t tr v w x y z"
STARTS, VOWELS, ENDS = SYLLABLES.split(), "aeiouy", "lmnrsxtk"


def some_words(rng: np.random.Generator, held_out: bool = False) -> Iterator[str]:
    """Words without end: everyday ones in any order, none of them twice before all were said, and names."""
    while True:
        for number in rng.permutation(len(WORDS)):
            if rng.random() < NAMES:
                yield invented(rng, held_out)
            yield WORDS[number]


def invented(rng: np.random.Generator, held_out: bool = False) -> str:
    """A name of two or three syllables, such as ``"Karolem"``; one in five is held out."""
    while True:
        parts = [f"{STARTS[rng.integers(len(STARTS))]}{VOWELS[rng.integers(6)]}" for _ in range(rng.integers(2, 4))]
        name = ("".join(parts) + (ENDS[rng.integers(len(ENDS))] if rng.random() < 0.5 else "")).capitalize()
        if (zlib.crc32(name.encode()) % HELD_OUT == 0) == held_out:
            return name
