//! Text as Markdown: escaped so that it appears unchanged, in tables, and in blocks of code.

/// Returns `text` with a backslash before each of the characters `\*_<>[]|`, which are special in Markdown. Text
/// between backticks is not changed.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut in_code = false;
    for character in text.chars() {
        in_code ^= character == '`';
        if !in_code && matches!(character, '\\' | '*' | '_' | '<' | '>' | '[' | ']' | '|') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Returns a Markdown table with the heading `head`. Cells are Markdown; their white space, including line
/// breaks, becomes single spaces.
#[must_use]
pub fn table<const COLUMNS: usize>(head: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let mut table = line(&head) + &line(&["---"; COLUMNS]);
    for row in rows {
        let cells: Vec<_> =
            row.iter().map(|cell| cell.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        table.push_str(&line(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    table
}

/// Returns a fenced block of code, which Markdown shows verbatim, in the language `language`.
#[must_use]
pub fn block(language: &str, text: &str) -> String {
    format!("```{language}\n{}\n```\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_escaped_outside_of_code() {
        assert_eq!(escaped("a <b> `c_<d>` *e* f|g"), r"a \<b\> `c_<d>` \*e\* f\|g");
    }

    #[test]
    fn cells_are_one_line_each() {
        let made = table(["a", "b"], &[["x\ny".to_owned(), "z".to_owned()]]);
        assert_eq!(made, "| a | b |\n| --- | --- |\n| x y | z |\n");
    }
}
