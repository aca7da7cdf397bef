//! Cuts the text of an expression into tokens, with CEL's literals and comments. Sees each byte once.

use std::borrow::Cow;

use crate::error::CompileError;
use crate::limits::SOURCE_BYTES_MAX;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token<'s> {
    /// A name, which may be a reserved word.
    Name(&'s str),
    /// A name in back-quotes, which can only be a field's.
    Quoted(&'s str),
    /// Without its sign.
    Int(u64),
    Double(f64),
    Text(Cow<'s, str>),
    Symbol(&'static str),
    End,
}

/// Longer ones first, since the first that fits is taken.
const SYMBOLS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "?", ":", "+", "-", "*", "/", "%", "(", ")", "[", "]",
    ".", ",", "{", "}",
];

/// The tokens with their places; the last is [`Token::End`].
pub(crate) fn tokens(source: &str) -> Result<Vec<(Token<'_>, usize)>, CompileError> {
    if source.len() > SOURCE_BYTES_MAX {
        let length = source.len();
        let message = format!("the expression has {length} bytes; the most are {SOURCE_BYTES_MAX}");
        return Err(CompileError::new("", 0, message));
    }
    let mut lexer = Lexer { source, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks();
        let start = lexer.at;
        let token = lexer.token()?;
        let is_end = token == Token::End;
        tokens.push((token, start));
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.source.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error<T>(&self, offset: usize, message: impl Into<String>) -> Result<T, CompileError> {
        Err(CompileError::new(self.source, offset, message))
    }

    /// Takes bytes as long as they are like this. Only for ASCII.
    fn take_while(&mut self, like: impl Fn(u8) -> bool) -> &'s str {
        let start = self.at;
        let taken = self.source.as_bytes()[start..].iter().take_while(|&&byte| byte.is_ascii() && like(byte));
        self.at += taken.count();
        &self.source[start..self.at]
    }

    fn skip_blanks(&mut self) {
        loop {
            self.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c'));
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn token(&mut self) -> Result<Token<'s>, CompileError> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        let start = self.at;
        match first {
            '0'..='9' => return self.number(),
            '.' if self.byte(1).is_ascii_digit() => return self.number(),
            '"' | '\'' => return self.text(Escapes::Known),
            '`' => return self.quoted_name(),
            'a'..='z' | 'A'..='Z' | '_' => {}
            _ => {
                let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) else {
                    return self.error(start, unexpected(first));
                };
                self.at += symbol.len();
                return Ok(Token::Symbol(symbol));
            }
        }
        let name = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !matches!(self.byte(0), b'"' | b'\'') {
            return Ok(Token::Name(name));
        }
        match name {
            "r" | "R" => self.text(Escapes::Raw),
            "b" | "B" | "rb" | "rB" | "Rb" | "RB" | "br" | "bR" | "Br" | "BR" => {
                self.error(start, "bytes are not supported; write a string, without the b")
            }
            _ => Ok(Token::Name(name)),
        }
    }

    fn quoted_name(&mut self) -> Result<Token<'s>, CompileError> {
        let start = self.at;
        self.at += 1;
        let name = self.take_while(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'/' | b' ')
        });
        if name.is_empty() || self.byte(0) != b'`' {
            let message = "a name in back-quotes has letters, digits and _ . - / and spaces, and ends with a back-quote";
            return self.error(start, message);
        }
        self.at += 1;
        Ok(Token::Quoted(name))
    }

    fn number(&mut self) -> Result<Token<'s>, CompileError> {
        let start = self.at;
        let token = if self.byte(0) == b'0' && matches!(self.byte(1), b'x' | b'X') {
            self.at += 2;
            let digits = self.take_while(|byte| byte.is_ascii_hexdigit());
            u64::from_str_radix(digits, 16).ok().map(Token::Int)
        } else {
            self.take_while(|byte| byte.is_ascii_digit());
            let mut is_int = true;
            if self.byte(0) == b'.' && self.byte(1).is_ascii_digit() {
                self.at += 1;
                self.take_while(|byte| byte.is_ascii_digit());
                is_int = false;
            }
            let signed = usize::from(matches!(self.byte(1), b'+' | b'-'));
            if matches!(self.byte(0), b'e' | b'E') && self.byte(1 + signed).is_ascii_digit() {
                self.at += 1 + signed;
                self.take_while(|byte| byte.is_ascii_digit());
                is_int = false;
            }
            let digits = &self.source[start..self.at];
            if is_int {
                digits.parse().ok().map(Token::Int)
            } else {
                digits.parse().ok().filter(|double: &f64| double.is_finite()).map(Token::Double)
            }
        };
        if matches!(self.byte(0), b'u' | b'U') {
            return self.error(self.at, "unsigned numbers are not supported; leave out the u");
        }
        if self.byte(0).is_ascii_alphanumeric() || self.byte(0) == b'_' {
            return self.error(self.at, "a letter follows a number; put a space or an operator between them");
        }
        match token {
            Some(token) => Ok(token),
            None => {
                let number = &self.source[start..self.at];
                self.error(start, format!("the number {number} does not fit 64 bits"))
            }
        }
    }

    fn text(&mut self, escapes: Escapes) -> Result<Token<'s>, CompileError> {
        let start = self.at;
        let quote = &self.rest()[..1];
        let triple = self
            .rest()
            .as_bytes()
            .get(..3)
            .is_some_and(|three| three.iter().all(|b| [*b] == quote.as_bytes()));
        let end = &self.rest()[..if triple { 3 } else { 1 }];
        self.at += end.len();
        let content = self.at;
        let mut built: Option<String> = None;
        loop {
            let rest = self.rest();
            if rest.starts_with(end) {
                let plain = &self.source[content..self.at];
                self.at += end.len();
                return Ok(Token::Text(built.map_or(Cow::Borrowed(plain), Cow::Owned)));
            }
            let Some(next) = rest.chars().next() else {
                return self.error(start, "the string has no end");
            };
            if !triple && matches!(next, '\n' | '\r') {
                return self
                    .error(start, "the string has no end on its line; one over lines has three quotes");
            }
            let place = self.at;
            let character = if next == '\\' && escapes == Escapes::Known {
                built.get_or_insert_with(|| self.source[content..place].to_owned());
                self.escape()?
            } else {
                self.at += next.len_utf8();
                next
            };
            if let Some(built) = &mut built {
                built.push(character);
            }
        }
    }

    fn escape(&mut self) -> Result<char, CompileError> {
        let start = self.at;
        let letter = self.byte(1);
        self.at += 2;
        let code = match letter {
            b'a' => Some(0x07),
            b'b' => Some(0x08),
            b'f' => Some(0x0c),
            b'n' => Some(0x0a),
            b'r' => Some(0x0d),
            b't' => Some(0x09),
            b'v' => Some(0x0b),
            b'\\' | b'?' | b'"' | b'\'' | b'`' => Some(u32::from(letter)),
            b'x' | b'X' => self.digits(2, 16),
            b'u' => self.digits(4, 16),
            b'U' => self.digits(8, 16),
            b'0'..=b'3' => {
                self.at -= 1;
                self.digits(3, 8)
            }
            _ => None,
        };
        match code.and_then(char::from_u32) {
            Some(character) => Ok(character),
            None => self
                .error(start, r"unknown escape; there are \n \t \\ \' \x41 \u0041 and CEL's others, or r'…'"),
        }
    }

    fn digits(&mut self, count: usize, radix: u32) -> Option<u32> {
        let digits = self.rest().get(..count)?;
        if !digits.bytes().all(|byte| char::from(byte).is_digit(radix)) {
            return None;
        }
        self.at += count;
        u32::from_str_radix(digits, radix).ok()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Escapes {
    Known,
    Raw,
}

fn unexpected(character: char) -> String {
    match character {
        '=' => "unexpected '='; equality is '=='".to_owned(),
        '&' => "unexpected '&'; and is '&&'".to_owned(),
        '|' => "unexpected '|'; or is '||'".to_owned(),
        _ => format!("unexpected character {character:?}"),
    }
}
