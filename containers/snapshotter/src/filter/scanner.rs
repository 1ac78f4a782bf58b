//! The scanner of filters: see [the module above](super).

/// A token, without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    End,
    Quoted,
    Value,
    Field,
    Separator,
    Operator,
    /// The text is broken here: why.
    Illegal(&'static str),
    /// A character that begins no token.
    Other,
}

/// A character, the end, or a character that is none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    End,
    Char(char),
    Illegal,
}

pub(super) struct Scanner<'a> {
    input: &'a str,
    /// The place of the last character that was taken.
    at: usize,
    /// The place behind it.
    next: usize,
    /// `true` behind an operator: what comes is a value.
    is_value: bool,
    fault: Option<&'static str>,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(input: &'a str) -> Self {
        Self { input, at: 0, next: 0, is_value: false, fault: None }
    }

    /// The place behind the last character that was taken.
    pub(super) fn place(&self) -> usize {
        self.next
    }

    /// The next character, which is not taken; `None` at the end.
    pub(super) fn peek(&self) -> Option<char> {
        self.input[self.next..].chars().next()
    }

    fn take(&mut self) -> Next {
        self.at = self.next;
        let Some(c) = self.peek() else { return Next::End };
        self.next += c.len_utf8();
        match c {
            '\u{fffd}' => self.illegal("rune error"),
            '\0' => self.illegal("unexpected null"),
            c => Next::Char(c),
        }
    }

    fn illegal(&mut self, fault: &'static str) -> Next {
        self.fault.get_or_insert(fault);
        Next::Illegal
    }

    fn broken(&self) -> Token {
        Token::Illegal(self.fault.unwrap_or("illegal input"))
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) {
        while self.peek().is_some_and(&is_part) {
            self.take();
        }
    }

    /// Takes the next token: its place, and its text.
    pub(super) fn scan(&mut self) -> (usize, Token, &'a str) {
        let mut next = self.take();
        while matches!(next, Next::Char(c) if c.is_whitespace()) {
            next = self.take();
        }
        let at = self.at;
        let token = match next {
            Next::End => Token::End,
            Next::Illegal => self.broken(),
            Next::Char(quote @ ('/' | '|' | '"')) => {
                if self.take_quoted(quote) {
                    Token::Quoted
                } else {
                    self.broken()
                }
            }
            Next::Char(',' | '.') => {
                self.is_value = false;
                Token::Separator
            }
            Next::Char('=' | '!' | '~') => {
                self.take_while(|c| matches!(c, '=' | '!' | '~'));
                self.is_value = true;
                Token::Operator
            }
            Next::Char(_) if self.is_value => {
                self.take_while(|c| c != ',' && !c.is_whitespace() && !c.is_control());
                self.is_value = false;
                Token::Value
            }
            Next::Char(c) if is_of_field(c) => {
                self.take_while(is_of_field);
                Token::Field
            }
            Next::Char(_) => Token::Other,
        };
        (at, token, &self.input[at..self.next])
    }

    /// Takes the rest of a quoted text; `false` if it is broken.
    fn take_quoted(&mut self, quote: char) -> bool {
        let mut is_legal = true;
        let mut next = self.take();
        while next != Next::Char(quote) {
            next = match next {
                Next::Char('\\') => {
                    let (after, was_legal) = self.take_escape(quote);
                    is_legal &= was_legal;
                    after
                }
                Next::Char(c) if c != '\n' => self.take(),
                _ => {
                    self.illegal("quoted literal not terminated");
                    return false;
                }
            };
        }
        is_legal
    }

    /// Takes what follows a backslash, and the character after it.
    fn take_escape(&mut self, quote: char) -> (Next, bool) {
        match self.take() {
            Next::Char('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '\\') => (self.take(), true),
            Next::Char(c) if c == quote => (self.take(), true),
            first @ Next::Char('0'..='7') => self.take_digits(first, 8, 3),
            Next::Char('x') => self.take_more_digits(2),
            Next::Char('u') => self.take_more_digits(4),
            Next::Char('U') => self.take_more_digits(8),
            other => {
                self.illegal("illegal escape sequence");
                (other, false)
            }
        }
    }

    fn take_more_digits(&mut self, count: u32) -> (Next, bool) {
        let first = self.take();
        self.take_digits(first, 16, count)
    }

    fn take_digits(&mut self, first: Next, radix: u32, count: u32) -> (Next, bool) {
        let mut next = first;
        for _ in 0..count {
            if !matches!(next, Next::Char(c) if c.is_digit(radix)) {
                self.illegal("illegal numeric escape sequence");
                return (next, false);
            }
            next = self.take();
        }
        (next, true)
    }
}

fn is_of_field(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}
