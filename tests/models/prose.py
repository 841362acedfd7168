# SPDX-License-Identifier: Apache-2.0
"""Four passages of prose, of more than 125 tokens each: a story, a recipe, an explanation, a letter."""

PASSAGES = [
    "The lighthouse stood at the end of a long stone pier, and every evening the keeper walked out with a "
    "lantern in his hand. He had done this for thirty years, in summer and in winter, and he knew each of the "
    "stones by its sound under his boots. When the fog came in from the west he lit the great lamp early, "
    "because the fishing boats would turn back as soon as they lost sight of the church. One night in November "
    "the lamp would not burn. He cleaned the wick, he filled the tank with fresh oil, he tried three boxes of "
    "matches, and still there was only smoke. So he carried the bell up the stairs, sat down in the open "
    "window, and rang it until the sun came up.",
    "Bread needs only four things: flour, water, salt and yeast. Mix the flour with the water first and leave "
    "it alone for half an hour, so that it can take up the water by itself. Then add the salt and the yeast "
    "and knead the dough for about ten minutes, until it is smooth and no longer sticks to your hands. Cover "
    "the bowl with a cloth and put it in a warm place. After an hour the dough should have doubled in size. "
    "Shape it into a loaf, let it rest for another thirty minutes, and heat the oven as hot as it will go. A "
    "pan of water on the bottom of the oven makes steam, which keeps the crust soft while the loaf is still "
    "rising.",
    "A computer stores numbers as patterns of bits. A whole number is easy: each bit stands for a power of "
    "two, and the number is the sum of those powers. Fractions are harder, because most of them cannot be "
    "written with a finite number of bits. The usual answer is a floating point number, which consists of a "
    "sign, an exponent and a fraction. The exponent says how large the number is, and the fraction says what "
    "its digits are. When two such numbers are added, the smaller one is shifted until both have the same "
    "exponent, and the bits that fall off the end are lost. This is why the order in which numbers are added "
    "can change the result, and why two programs that do the same sum may disagree in the last digit.",
    "Dear Anna, thank you for your letter and for the photographs of the garden. The roses look wonderful, and "
    "I can hardly believe that the apple tree has grown so tall. We arrived here on Tuesday after two days on "
    "the train. The children slept most of the way, but I sat at the window and watched the mountains go by. "
    "Our house is small and a little dark, but there is a stove in the kitchen and a view of the river from "
    "the bedroom. Peter starts his new job on Monday. He says that he is not nervous, but he has already "
    "ironed all of his shirts twice. Please give my love to your mother, and tell her that I will write as "
    "soon as we have unpacked the last of the boxes.",
]
