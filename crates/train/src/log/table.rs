//! The table at the end of a run.

use std::fmt::Write;

/// Two columns between rules, the first as wide as its longest label.
pub fn table(title: &str, rows: &[(&str, String)]) -> String {
    let label_width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let value_width = rows.iter().map(|(_, value)| value.chars().count()).max().unwrap_or(0);
    let width = (label_width + 2 + value_width).max(title.chars().count());
    let rule = "-".repeat(width);

    let mut text = format!("{title}\n{rule}\n");
    for (label, value) in rows {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{label:label_width$}  {value}");
    }
    text.push_str(&rule);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text = table("run tiny", &[("steps", "20".into()), ("final loss", "8.247".into())]);
        assert_eq!(text, "run tiny\n-----------------\nsteps       20\nfinal loss  8.247\n-----------------");
    }
}
