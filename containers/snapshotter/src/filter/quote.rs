//! Quoted texts of filters: Go's strings, also between slashes and bars.

/// The text in quotes, without them and with its escapes replaced. `None` if it is broken, or is not UTF-8.
pub(super) fn unquote(text: &str) -> Option<String> {
    let quote = text.chars().next()?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    if inner.contains('\n') {
        return None;
    }
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => escaped(&mut rest, quote, &mut bytes)?,
            c if c == quote => return None,
            c => push(c, &mut bytes),
        }
    }
    String::from_utf8(bytes).ok()
}

fn push(c: char, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Reads what follows a backslash.
fn escaped(rest: &mut std::str::Chars<'_>, quote: char, bytes: &mut Vec<u8>) -> Option<()> {
    let c = rest.next()?;
    match c {
        'a' => bytes.push(7),
        'b' => bytes.push(8),
        'f' => bytes.push(12),
        'n' => bytes.push(b'\n'),
        'r' => bytes.push(b'\r'),
        't' => bytes.push(b'\t'),
        'v' => bytes.push(11),
        '\\' => bytes.push(b'\\'),
        'x' => bytes.push(u8::try_from(number(rest, 16, 2, 0)?).ok()?),
        'u' => push(char::from_u32(number(rest, 16, 4, 0)?)?, bytes),
        'U' => push(char::from_u32(number(rest, 16, 8, 0)?)?, bytes),
        '0'..='7' => bytes.push(u8::try_from(number(rest, 8, 2, c.to_digit(8)?)?).ok()?),
        c if c == quote => push(c, bytes),
        _ => return None,
    }
    Some(())
}

fn number(rest: &mut std::str::Chars<'_>, radix: u32, digits: usize, first: u32) -> Option<u32> {
    let mut number = first;
    for _ in 0..digits {
        number = number.checked_mul(radix)?.checked_add(rest.next()?.to_digit(radix)?)?;
    }
    Some(number)
}
