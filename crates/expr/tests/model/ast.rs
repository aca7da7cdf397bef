//! Random trees of the language, and how they are written.

/// Choices that a random tree is made from. When they run out every choice is the first, which makes leaves.
pub(crate) struct Tape<'t> {
    choices: &'t [u16],
    at: usize,
}

impl<'t> Tape<'t> {
    pub(crate) fn new(choices: &'t [u16]) -> Tape<'t> {
        Tape { choices, at: 0 }
    }

    fn choose(&mut self, options: usize) -> usize {
        let choice = self.choices.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(choice) % options
    }

    fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.choose(options.len())]
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Ast {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(&'static str),
    Variable(&'static str),
    List(Vec<Ast>),
    Field(Box<Ast>, &'static str),
    Has(Box<Ast>, &'static str),
    Index(Box<Ast>, Box<Ast>),
    Not(Box<Ast>),
    Negate(Box<Ast>),
    Binary(&'static str, Box<Ast>, Box<Ast>),
    If(Box<Ast>, Box<Ast>, Box<Ast>),
    Call(&'static str, Vec<Ast>),
    Method(&'static str, Vec<Ast>),
}

/// What a tree is meant to be. Now and then it is something else, so that errors occur.
#[derive(Clone, Copy)]
enum Wanted {
    Bool,
    Number,
    Text,
    Any,
}

const INTS: [i64; 8] = [0, 1, -1, 2, 7, i64::MAX, i64::MIN, 9_007_199_254_740_993];
const DOUBLES: [f64; 8] =
    [0.0, 1.0, -2.5, 0.5, 7.0, 1e300, 9_007_199_254_740_992.0, 9_223_372_036_854_775_808.0];
const TEXTS: [&str; 7] = ["", "a", "ab", "Hello", "è \"'\\\n", " b ", "12"];
const FIELDS: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "max", "min"];

impl Ast {
    pub(crate) fn random(tape: &mut Tape<'_>, depth: usize) -> Ast {
        let wanted = tape.pick(&[Wanted::Bool, Wanted::Number, Wanted::Text, Wanted::Any]);
        Ast::of(wanted, tape, depth)
    }

    fn of(wanted: Wanted, tape: &mut Tape<'_>, depth: usize) -> Ast {
        let wanted = if tape.choose(24) == 23 { Wanted::Any } else { wanted };
        if depth == 0 || tape.choose(6) == 0 {
            return Ast::leaf(wanted, tape);
        }
        let depth = depth - 1;
        let of = |wanted: Wanted, tape: &mut Tape<'_>| Box::new(Ast::of(wanted, tape, depth));
        if tape.choose(8) == 7 {
            let condition = of(Wanted::Bool, tape);
            return Ast::If(condition, of(wanted, tape), of(wanted, tape));
        }
        match wanted {
            Wanted::Bool => match tape.choose(7) {
                0 => Ast::Not(of(Wanted::Bool, tape)),
                1 | 2 => {
                    Ast::Binary(tape.pick(&["&&", "||"]), of(Wanted::Bool, tape), of(Wanted::Bool, tape))
                }
                3 => {
                    let both = tape.pick(&[Wanted::Number, Wanted::Text, Wanted::Any]);
                    let operator = tape.pick(&["==", "!=", "<", "<=", ">", ">="]);
                    Ast::Binary(operator, of(both, tape), of(both, tape))
                }
                4 => Ast::Has(of(Wanted::Any, tape), tape.pick(&FIELDS)),
                5 => {
                    let name = tape.pick(&["contains", "startsWith", "endsWith"]);
                    Ast::Method(name, vec![*of(Wanted::Text, tape), *of(Wanted::Text, tape)])
                }
                _ => {
                    let sought = of(Wanted::Any, tape);
                    let list = Ast::List((0..tape.choose(4)).map(|_| *of(Wanted::Any, tape)).collect());
                    Ast::Binary("in", sought, Box::new(list))
                }
            },
            Wanted::Number => match tape.choose(6) {
                0 => Ast::Negate(of(Wanted::Number, tape)),
                1 | 2 => {
                    let operator = tape.pick(&["+", "-", "*", "/", "%"]);
                    Ast::Binary(operator, of(Wanted::Number, tape), of(Wanted::Number, tape))
                }
                3 => {
                    let name = tape.pick(&["min", "max", "math.least", "math.greatest"]);
                    Ast::Call(name, (0..=tape.choose(3)).map(|_| *of(Wanted::Number, tape)).collect())
                }
                4 => Ast::Call(tape.pick(&["abs", "int", "double"]), vec![*of(Wanted::Number, tape)]),
                _ => Ast::Call("size", vec![*of(Wanted::Text, tape)]),
            },
            Wanted::Text => match tape.choose(3) {
                0 => Ast::Binary("+", of(Wanted::Text, tape), of(Wanted::Text, tape)),
                1 => Ast::Method(
                    tape.pick(&["trim", "lowerAscii", "upperAscii"]),
                    vec![*of(Wanted::Text, tape)],
                ),
                _ => Ast::Call("string", vec![*of(tape.pick(&[Wanted::Number, Wanted::Bool]), tape)]),
            },
            Wanted::Any => match tape.choose(4) {
                0 => Ast::Field(of(Wanted::Any, tape), tape.pick(&FIELDS)),
                1 => Ast::Index(of(Wanted::Any, tape), of(Wanted::Any, tape)),
                2 => Ast::List((0..tape.choose(4)).map(|_| *of(Wanted::Any, tape)).collect()),
                _ => Ast::random(tape, depth),
            },
        }
    }

    fn leaf(wanted: Wanted, tape: &mut Tape<'_>) -> Ast {
        let of_json = |tape: &mut Tape<'_>| Ast::Field(Box::new(Ast::Variable("json")), tape.pick(&FIELDS));
        match wanted {
            Wanted::Bool => match tape.choose(3) {
                0 => Ast::Bool(tape.choose(2) == 0),
                1 => Ast::Variable("yes"),
                _ => Ast::Field(Box::new(Ast::Variable("json")), "g"),
            },
            Wanted::Number => match tape.choose(4) {
                0 => Ast::Int(tape.pick(&INTS)),
                1 => Ast::Double(tape.pick(&DOUBLES)),
                2 => Ast::Variable(tape.pick(&["int", "double", "number"])),
                _ => Ast::Field(Box::new(Ast::Variable("json")), tape.pick(&["a", "b", "max", "min"])),
            },
            Wanted::Text => match tape.choose(3) {
                0 => Ast::Text(tape.pick(&TEXTS)),
                1 => Ast::Variable("text"),
                _ => Ast::Field(Box::new(Ast::Variable("json")), "c"),
            },
            Wanted::Any => match tape.choose(6) {
                0 => Ast::Null,
                1 => Ast::leaf(Wanted::Bool, tape),
                2 => Ast::leaf(Wanted::Number, tape),
                3 => Ast::leaf(Wanted::Text, tape),
                4 => Ast::Variable("json"),
                _ => of_json(tape),
            },
        }
    }

    /// As CEL, with the parentheses that are needed and some that are not.
    pub(crate) fn to_text(&self, tape: &mut Tape<'_>) -> String {
        self.ranked(0, tape)
    }

    /// In parentheses if it binds less tightly than this.
    fn ranked(&self, least: u8, tape: &mut Tape<'_>) -> String {
        let text = self.bare(tape);
        if self.rank() < least || tape.choose(10) == 9 { format!("({text})") } else { text }
    }

    fn rank(&self) -> u8 {
        match self {
            Ast::If(..) => 0,
            Ast::Binary(operator, ..) => match *operator {
                "||" => 1,
                "&&" => 2,
                "+" | "-" => 4,
                "*" | "/" | "%" => 5,
                _ => 3,
            },
            Ast::Not(_) | Ast::Negate(_) => 6,
            Ast::Int(int) if *int < 0 => 6,
            Ast::Double(double) if *double < 0.0 => 6,
            _ => 7,
        }
    }

    fn bare(&self, tape: &mut Tape<'_>) -> String {
        let blank = tape.pick(&[" ", "", "  ", "\n"]);
        let list = |parts: &[Ast], tape: &mut Tape<'_>| {
            parts.iter().map(|part| part.ranked(0, tape)).collect::<Vec<_>>().join(",")
        };
        match self {
            Ast::Null => "null".to_owned(),
            Ast::Bool(truth) => truth.to_string(),
            Ast::Int(int) => int.to_string(),
            Ast::Double(double) => format!("{double:?}"),
            Ast::Text(text) => quoted(text, tape),
            Ast::Variable(name) => (*name).to_owned(),
            Ast::List(entries) => format!("[{blank}{}]", list(entries, tape)),
            Ast::Field(of, name) => match tape.choose(3) {
                2 => format!("{}['{name}']", of.ranked(7, tape)),
                _ => format!("{}{blank}.{name}", of.ranked(7, tape)),
            },
            Ast::Has(of, name) => format!("has({}.{name})", of.ranked(7, tape)),
            Ast::Index(of, index) => format!("{}[{}]", of.ranked(7, tape), index.ranked(0, tape)),
            Ast::Not(of) => format!("!{blank}{}", of.sign_operand("!", tape)),
            Ast::Negate(of) => format!("-{blank}{}", of.sign_operand("-", tape)),
            Ast::Binary(operator, left, right) => {
                let (left, right) = (left.ranked(self.rank(), tape), right.ranked(self.rank() + 1, tape));
                // A word needs its blanks.
                let blank = if *operator == "in" { " " } else { blank };
                format!("{left}{blank}{operator}{blank}{right}")
            }
            Ast::If(condition, then, otherwise) => {
                let (condition, then) = (condition.ranked(1, tape), then.ranked(1, tape));
                format!("{condition}{blank}?{blank}{then}{blank}:{blank}{}", otherwise.ranked(0, tape))
            }
            Ast::Call(name, arguments) => match (*name, &arguments[..]) {
                ("size", [of]) if tape.choose(2) == 1 => format!("{}.size()", of.ranked(7, tape)),
                _ => format!("{name}({})", list(arguments, tape)),
            },
            Ast::Method(name, arguments) => {
                format!("{}.{name}({})", arguments[0].ranked(7, tape), list(&arguments[1..], tape))
            }
        }
    }

    /// CEL lets only the same sign follow a sign. A number after a minus would take it for its own.
    fn sign_operand(&self, sign: &str, tape: &mut Tape<'_>) -> String {
        match (self, sign) {
            (Ast::Not(_), "!") | (Ast::Negate(_), "-") => self.ranked(6, tape),
            (Ast::Int(_) | Ast::Double(_), _) => format!("({})", self.ranked(0, tape)),
            _ => self.ranked(7, tape),
        }
    }
}

fn quoted(text: &str, tape: &mut Tape<'_>) -> String {
    let escaped =
        text.replace('\\', r"\\").replace('\n', r"\n").replace('"', "\\\"").replace('\'', r"\u0027");
    match tape.choose(4) {
        0 => format!("\"{escaped}\""),
        1 => format!("'{escaped}'"),
        2 => format!("'''{escaped}'''"),
        _ if text.contains(['"', '\n']) => format!("'{escaped}'"),
        _ => format!("r\"{text}\""),
    }
}
