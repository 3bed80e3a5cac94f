# ruff: noqa: SIM905 (long lists read better as text)
"""Words, names and places that the generators draw from, and made-up words."""

from __future__ import annotations

from random import Random

WORDS = tuple(
    """
    apple arrow autumn badger baker ball banana barn basket beach bear beetle bell berry bicycle bird blanket boat bone
    book bottle branch bread breeze brick bridge bright brother brush bucket butter button cabin cable cactus cake camel
    camera candle canoe carpet carrot castle cat cave chair chalk cheese cherry chess chicken circle city clay clean
    clever cliff clock cloud clover coast coat coffee coin color copper coral corn cotton country cow crab crane crow
    crystal cup curtain cushion dance dark deer desert diamond dinner dog dolphin donkey door dove dragon dream dress
    drum duck dust eagle earth easy egg elbow elephant engine evening falcon family farm father feather fence ferry
    field finger fire fish flag flame flower flute forest fork fox friend frog fruit garden garlic gate ghost giant
    ginger giraffe glass glove goat gold goose grain grape grass
    gravel green guitar hammer hand happy harbor hat hawk
    heart hedge hello helmet hill honey horse hotel house hunter ice island ivory jacket jar jelly jewel jungle kettle
    key kitchen kite kitten ladder lake lamp language laptop leaf lemon letter library light lily lion lizard lobster
    machine magnet mango map maple marble market meadow melon metal milk mirror money monkey moon morning mother motor
    mountain mouse museum music nail napkin needle nest night north number nurse nut oak ocean olive onion orange
    orchard otter oven owl paint palace panda paper parrot pasta peach pear pebble pencil penguin pepper phone
    piano picture
    pillow pilot pine pirate pizza planet plant plate plum pocket poem pond pony potato puppy purple puzzle python queen
    quick quiet rabbit radio rain rainbow raven ribbon rice river road robin robot rocket roof root rope rose ruby sail
    salad salt sand school sea seed shadow shark sheep shell ship shirt shoe silver sister sky sleep small snail snake
    snow soap soup south spider spoon spring squirrel stamp star station steam stone storm story strawberry street
    string student sugar summer sun swan table tea teacher temple tent thunder ticket tiger tomato tower town train
    travel tree trumpet tulip tunnel turtle umbrella valley velvet village violin wagon wall walnut water wave west
    whale wheat wheel whisper white willow wind window winter wolf wonder wood wool word world yellow zebra
    """.split()
)
NAMES = tuple(
    """Ada Ben Cara Dan Eva Finn Gina Hugo Ida Jack Kim Leo Mia Nora Omar Paul Rosa Sam Tina Uma Vera Will Zoe Anna Bob
    Clara David Emma Frank Grace Henry Iris Jonas Kate Lucas Maria Nina Oscar Peter Ruth Sofia Tom Alice Max Lena Noah
    Olga Felix Marta Viktor Lily Simon Julia Karl Amy Pedro Hana Liam""".split()
)
CITIES = tuple(
    """Paris London Berlin Madrid Rome Vienna Oslo Tokyo Cairo Lima Delhi Boston Chicago Dublin Prague Warsaw Athens
    Lisbon Helsinki Stockholm Budapest Toronto Sydney Seoul Moscow Geneva Milan Hamburg Munich Zurich Nairobi Havana
    Denver Seattle Dallas Kyoto Osaka Bergen Porto Naples Venice Krakow Riga Tallinn Manila Bangkok Hanoi Quito Bogota
    Santiago""".split()
)
COLORS = ("red", "blue", "green", "yellow", "black", "white", "brown", "purple", "orange", "grey")
ANIMALS = (
    "cat",
    "dog",
    "horse",
    "rabbit",
    "fox",
    "owl",
    "bear",
    "mouse",
    "duck",
    "sheep",
    "goat",
    "frog",
    "wolf",
    "pony",
)
JOBS = ("baker", "teacher", "nurse", "pilot", "farmer", "doctor", "painter", "driver", "cook", "writer")

_STARTS = (
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "br",
    "cl",
    "dr",
    "st",
    "tr",
    "pl",
    "sh",
)
_VOWELS = ("a", "e", "i", "o", "u", "a", "e", "o", "ea", "oo")
_ENDS = ("", "", "n", "r", "l", "t", "s", "m", "ck", "st", "nd")


def made_up(rng: Random, syllables: int = 2) -> str:
    """A pronounceable word of at most 10 letters."""
    word = "".join(rng.choice(_STARTS) + rng.choice(_VOWELS) + rng.choice(_ENDS) for _ in range(syllables))
    return word[:10]


def any_word(rng: Random) -> str:
    """Half the time a real word, half the time a made-up one: the letters have to be learned, not the words."""
    return rng.choice(WORDS) if rng.random() < 0.6 else made_up(rng, rng.choice((1, 2, 2, 3)))
