//! Text that a terminal shows and does not obey.
//!
//! Reports and errors contain texts of others: tags and annotations of stores, texts of manifests and traces, answers
//! of servers, names of files. A control character in them could move the cursor or change the title of a terminal, and
//! an override of the direction of text could make a name look like another one. Everything that is printed for people
//! goes through here; JSON has rules of its own.

/// The characters that change the direction of the text around them, or end a line, and are no control characters.
const DIRECTING: [char; 14] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{202b}', '\u{202c}',
    '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];

/// Returns a text of one line, in which control characters, ends of lines included, and characters that change the
/// direction of text are escaped, as in `\u{1b}`.
#[must_use]
pub fn line(text: &str) -> String {
    escaped(text, |_| false)
}

/// Returns a text of any number of lines, escaped as by [`line()`], but with its ends of lines as they are. A part that
/// comes from others should go through [`line()`] before it gets into such a text.
#[must_use]
pub fn lines(text: &str) -> String {
    escaped(text, |c| c == '\n')
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if (c.is_control() || DIRECTING.contains(&c)) && !is_kept(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_controls_a_terminal() {
        let hostile = "ä\u{1b}[2J\r\t\u{7f}\u{9b}\u{202e}x\u{2067}\u{2028}\ny";
        let shown = r"ä\u{1b}[2J\r\t\u{7f}\u{9b}\u{202e}x\u{2067}\u{2028}";
        assert_eq!(line(hostile), format!(r"{shown}\ny"));
        assert_eq!(lines(hostile), format!("{shown}\ny"));
        assert_eq!(line(&line(hostile)), line(hostile));
        for plain in ["", "a b", "ü日本語", "שלום", "👨\u{200d}👩"] {
            assert_eq!(line(plain), plain);
        }
    }
}
