//! What is said: five people of an island station, four days each. All of it our own words. Knows no wire.

/// Turns of a conversation.
pub(crate) const TURNS: usize = 6;

const DAYS: [&str; 4] = ["monday", "tuesday", "wednesday", "thursday"];

/// One person's trade, day and questions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversation {
    book: char,
    day: &'static str,
    trade: &'static Trade,
}

#[derive(Debug)]
struct Trade {
    name: &'static str,
    notes: &'static str,
    questions: [&'static str; TURNS],
}

/// The twenty conversations of one book.
pub(crate) fn conversations(book: char) -> Vec<Conversation> {
    let of_day = |day| TRADES.iter().map(move |trade| Conversation { book, day, trade });
    DAYS.into_iter().flat_map(of_day).collect()
}

impl Conversation {
    /// For people.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.trade.name, &self.day[..3])
    }

    /// The session's key; another book is another session.
    pub(crate) fn key(&self) -> String {
        format!("demo-{}-{}", self.book, self.name())
    }

    /// What the system is told: the same first lines in every conversation of a book.
    pub(crate) fn system(&self) -> String {
        format!("Log book {}. {SYSTEM}", self.book)
    }

    /// What the person says at a turn; the first time with the day's notes.
    pub(crate) fn question(&self, turn: usize) -> String {
        let question = self.trade.questions[turn];
        match turn {
            0 => format!("The {} speaks, on {}. {} {question}", self.trade.name, self.day, self.trade.notes),
            _ => question.to_owned(),
        }
    }
}

const SYSTEM: &str = "You keep the log of a small island station and answer the people who work there. Be brief, give \
    numbers as they are written, and say so when the log does not tell.";

const TRADES: [Trade; 5] = [
    Trade {
        name: "keeper",
        notes: "The lamp was trimmed at six and lit at ten past seven, when the fog had already hidden the north reef. \
            Oil stood at forty litres in the morning and at thirty-one in the evening. The clockwork lost two minutes \
            before midnight; I wound it by hand and it kept time until dawn. A barque passed far to the west and \
            answered neither horn nor flag. Glass is dry, the gallery rail is loose on the seaward side, and the spare \
            mantle has a crack as long as my thumb.",
        questions: [
            "How much oil did the night take?",
            "And how many nights does the rest last if each is the same?",
            "What should I mend before the fog comes back?",
            "Write one line about the barque for the harbour office.",
            "Does the log say how long the clockwork ran after I wound it?",
            "Now put the whole night into three short sentences.",
        ],
    },
    Trade {
        name: "baker",
        notes: "Two sacks of rye are left and half a sack of wheat. The leaven was slow because the window stood open; \
            I moved the crock beside the flue and it rose in five hours instead of three. Twenty-four loaves went into \
            the oven at four, twenty-two came out good, one was burnt and one fell flat. The ferry crew took nine, the \
            school six, and the keeper his usual two. The oven door hangs a little lower than it did last winter and \
            lets heat out at the upper corner.",
        questions: [
            "How many loaves are still on the shelf?",
            "Who took the most, and how many was that?",
            "What made the dough slow, and what did I do about it?",
            "If the school wants six more tomorrow, how many must I bake?",
            "Is there anything in the log about the price of rye?",
            "Give me a list of what to order with the next boat.",
        ],
    },
    Trade {
        name: "ferryman",
        notes: "First crossing at seven with eleven passengers and the post; second at noon with four and a calf; the \
            third I did not sail, for the wind had gone to the north-east and stood at seven. The bow line is worn \
            where it runs through the lead and I turned it end for end. The engine took eighteen litres. Low water was \
            at half past two and the landing showed its third step, which it has not done since the spring tides. Two \
            oilskins were left under the bench.",
        questions: [
            "How many people crossed today?",
            "Why was there no third crossing?",
            "How much does the engine take for one crossing, then?",
            "What should the next man know about the bow line?",
            "Whom do the oilskins belong to?",
            "Write the notice for the board at the landing.",
        ],
    },
    Trade {
        name: "watcher",
        notes: "Clear from nine until one, then cirrus from the south. Jupiter stood well for an hour; I drew four moons \
            and the shadow of one on the northern belt. The double in the Swan parted cleanly at two hundred times. \
            The drive ran three seconds fast in ten minutes and I set its weight back by one ring. Dew came onto the \
            corrector at half past twelve, and I warmed it with the little lamp. Seven plates exposed, the fifth spoilt \
            because I knocked the slide.",
        questions: [
            "How many good plates are there?",
            "How long was the sky clear before the cirrus?",
            "What did I change on the drive, and why?",
            "Which moon threw the shadow, does the log tell?",
            "What should be ready before the next clear night?",
            "Make two lines of it for the observatory on the mainland.",
        ],
    },
    Trade {
        name: "gardener",
        notes: "The wall kept the frost out of the lower beds; only the outermost row of beans is black. I lifted four \
            rows of potatoes, sixty kilos good and nine with scab. The bees flew from eleven to three and brought ivy. \
            Salt came over with the gale and I washed the pear leaves twice with rain water. The barrel is down to a \
            third. Somebody's goat was in the cabbages again and went out through the gap by the well, where the wire \
            has been trodden flat.",
        questions: [
            "What share of the potatoes has scab?",
            "Which plants did the frost reach?",
            "How do I keep the goat out?",
            "When did the bees fly and what did they bring?",
            "How long will the water last?",
            "Sum it up for the kitchen, without the goat.",
        ],
    },
];
