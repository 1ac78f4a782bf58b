//! The parser of filters: see [the module above](super).

use super::quote::unquote;
use super::scanner::{Scanner, Token};
use super::{FieldSelector, FieldTest};
use regex::{Regex, RegexBuilder};

/// Bytes of a compiled regular expression at most; a longer one selects nothing.
const REGEX_MOST: usize = 1 << 20;

/// Reads the selectors of one filter.
///
/// # Errors
/// The text with the place of the fault in it, and the fault.
pub(super) fn selectors(input: &str) -> Result<Vec<FieldSelector>, String> {
    let mut parser = Parser { input, scanner: Scanner::new(input) };
    let mut selectors = vec![parser.selector()?];
    loop {
        match parser.scanner.peek() {
            None => return Ok(selectors),
            Some(',') => {
                parser.scanner.scan();
                selectors.push(parser.selector()?);
            }
            Some(other) => {
                return Err(parser.error(parser.scanner.place(), &format!("unexpected input: {other}")));
            }
        }
    }
}

struct Parser<'a> {
    input: &'a str,
    scanner: Scanner<'a>,
}

impl Parser<'_> {
    /// A fault at a place.
    fn error(&self, at: usize, fault: &str) -> String {
        let (before, rest) = self.input.split_at_checked(at).unwrap_or((self.input, ""));
        match rest.chars().next() {
            Some(there) => format!("[{before} >|{there}|< {}]: {fault}", &rest[there.len_utf8()..]),
            None => format!("[{}]: {fault}", self.input),
        }
    }

    /// The fault of a token that cannot be where it is.
    fn unexpected(&self, at: usize, token: Token, expected: &str) -> String {
        match token {
            Token::Illegal(fault) => self.error(at, fault),
            _ => self.error(at, expected),
        }
    }

    fn selector(&mut self) -> Result<FieldSelector, String> {
        let path = self.path()?;
        if matches!(self.scanner.peek(), None | Some(',')) {
            return Ok(FieldSelector { path, test: FieldTest::Present });
        }
        let (at, token, text) = self.scanner.scan();
        if token != Token::Operator {
            return Err(self.unexpected(at, token, r#"expected an operator ("=="|"!="|"~=")"#));
        }
        let test = match text {
            "==" => FieldTest::Equal(self.value(false)?),
            "!=" => FieldTest::NotEqual(self.value(false)?),
            "~=" => FieldTest::Matches(self.regex()?),
            other => return Err(self.error(at, &format!("unsupported operator {other:?}"))),
        };
        Ok(FieldSelector { path, test })
    }

    fn regex(&mut self) -> Result<Option<Regex>, String> {
        let text = self.value(true)?;
        let regex = RegexBuilder::new(&text).size_limit(REGEX_MOST).dfa_size_limit(REGEX_MOST).build();
        if let Err(error) = &regex {
            tracing::warn!(%error, text, "this filter has no regular expression and selects nothing");
        }
        Ok(regex.ok())
    }

    fn path(&mut self) -> Result<Vec<String>, String> {
        let mut path = vec![self.field()?];
        while self.scanner.peek() == Some('.') {
            self.scanner.scan();
            path.push(self.field()?);
        }
        Ok(path)
    }

    fn field(&mut self) -> Result<String, String> {
        let (at, token, text) = self.scanner.scan();
        match token {
            Token::Field => Ok(text.to_owned()),
            Token::Quoted => self.unquoted(at, text, false),
            _ => Err(self.unexpected(at, token, "expected field or quoted")),
        }
    }

    fn value(&mut self, may_have_other_quotes: bool) -> Result<String, String> {
        let (at, token, text) = self.scanner.scan();
        match token {
            Token::Field | Token::Value => Ok(text.to_owned()),
            Token::Quoted => self.unquoted(at, text, may_have_other_quotes),
            _ => Err(self.unexpected(at, token, "expected value or quoted")),
        }
    }

    fn unquoted(&self, at: usize, text: &str, may_have_other_quotes: bool) -> Result<String, String> {
        if !may_have_other_quotes && !text.starts_with('"') {
            return Err(self.error(at, "invalid quote encountered"));
        }
        unquote(text).ok_or_else(|| self.error(at, "unquoting failed: quote syntax error"))
    }
}
