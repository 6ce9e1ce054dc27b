//! YAML 1.1 scalars as PyYAML's `SafeLoader` resolves them.
//!
//! Rust's YAML crates follow YAML 1.2, where `150_001` is text and `yes` is a word; MaxText's files rely on 1.1.
//! Timestamps stay text, since no key is one.

use crate::node::Value;

/// What a plain (unquoted) scalar means.
pub fn resolve_plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Value::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    // An integer too large for 64 bits stays text: the key's type then reports it.
    int(text)
        .map(Value::Int)
        .or_else(|| float(text).map(Value::Float))
        .unwrap_or_else(|| Value::Text(text.to_owned()))
}

/// `[-+]? (0b[01_]+ | 0[0-7_]+ | 0 | [1-9][0-9_]* | 0x[0-9a-fA-F_]+ | [1-9][0-9_]*(:[0-5]?[0-9])+)`
fn int(text: &str) -> Option<i64> {
    let (negative, digits) = sign(text);
    let magnitude = if let Some(bits) = digits.strip_prefix("0b") {
        radix(bits, 2)?
    } else if let Some(hex) = digits.strip_prefix("0x") {
        radix(hex, 16)?
    } else if digits == "0" {
        0
    } else if let Some(octal) = digits.strip_prefix('0') {
        radix(octal, 8)?
    } else if digits.contains(':') {
        sexagesimal(digits)?
    } else {
        radix(digits.starts_with(|c: char| c.is_ascii_digit()).then_some(digits)?, 10)?
    };
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

fn radix(digits: &str, radix: u32) -> Option<i128> {
    if digits.is_empty() || !digits.chars().all(|c| c == '_' || c.is_digit(radix)) {
        return None;
    }
    let digits = digits.replace('_', "");
    // `0_` is octal zero; `0x_` has no digits at all and PyYAML fails on it.
    if digits.is_empty() { (radix == 8).then_some(0) } else { i128::from_str_radix(&digits, radix).ok() }
}

/// Base 60, such as `1:30` = 90.
fn sexagesimal(text: &str) -> Option<i128> {
    let mut parts = text.split(':');
    let head = parts.next()?;
    let mut value = radix(head.starts_with(|c: char| ('1'..='9').contains(&c)).then_some(head)?, 10)?;
    for part in parts {
        value = value.checked_mul(60)?.checked_add(below_sixty(part)?)?;
    }
    Some(value)
}

/// `[0-5]?[0-9]`
fn below_sixty(text: &str) -> Option<i128> {
    let well_formed = match text.as_bytes() {
        [ones] => ones.is_ascii_digit(),
        [tens, ones] => (b'0'..=b'5').contains(tens) && ones.is_ascii_digit(),
        _ => false,
    };
    well_formed.then(|| text.parse().ok()).flatten()
}

/// `[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)? | \.[0-9][0-9_]*([eE][-+][0-9]+)? |
/// [-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]* | [-+]?\.(inf|Inf|INF) | \.(nan|NaN|NAN)`
///
/// A float has a dot, and its exponent has a sign: `3e-5` and `1.0e5` are text.
fn float(text: &str) -> Option<f64> {
    let (negative, rest) = sign(text);
    let signed = |value: f64| if negative { -value } else { value };
    match rest {
        ".inf" | ".Inf" | ".INF" => return Some(signed(f64::INFINITY)),
        ".nan" | ".NaN" | ".NAN" if rest == text => return Some(f64::NAN),
        _ => {}
    }
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let (whole, fraction) = mantissa.split_once('.')?;
    let digits = |text: &str| text.chars().all(|c| c == '_' || c.is_ascii_digit());
    if !digits(fraction) {
        return None;
    }
    if whole.contains(':') {
        let minutes = sexagesimal_head(whole)?;
        let seconds: f64 = format!("0.{}0", fraction.replace('_', "")).parse().ok()?;
        return exponent.is_none().then(|| signed(minutes + seconds));
    }
    // `.5` takes no sign and needs a digit first; `5.` and `5._` are floats.
    let well_formed = match whole.chars().next() {
        None => rest == text && fraction.starts_with(|c: char| c.is_ascii_digit()),
        Some(first) => first.is_ascii_digit() && digits(whole),
    };
    if !well_formed || !exponent.is_none_or(is_signed_exponent) {
        return None;
    }
    let exponent = exponent.map(|digits| format!("e{digits}")).unwrap_or_default();
    format!("0{}.{}0{exponent}", whole.replace('_', ""), fraction.replace('_', "")).parse().ok().map(signed)
}

/// The part before the dot of a base-60 float, where the first digit may be 0.
fn sexagesimal_head(text: &str) -> Option<f64> {
    let mut parts = text.split(':');
    let head = parts.next()?;
    let mut value = radix(head.starts_with(|c: char| c.is_ascii_digit()).then_some(head)?, 10)? as f64;
    for part in parts {
        value = value * 60.0 + below_sixty(part)? as f64;
    }
    Some(value)
}

fn is_signed_exponent(text: &str) -> bool {
    text.strip_prefix(['-', '+'])
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

fn sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

/// A float in a form that reads back as a float under YAML 1.1.
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let plain = format!("{value:?}"); // shortest digits that read back, `1e-5` or `0.25`
    match plain.split_once('e') {
        None => plain,
        Some((mantissa, exponent)) => {
            let dot = if mantissa.contains('.') { "" } else { ".0" };
            let plus = if exponent.starts_with('-') { "" } else { "+" };
            format!("{mantissa}{dot}e{plus}{exponent}")
        }
    }
}

/// Text as YAML: plain where that reads back as the same text, else in double quotes.
pub fn quoted_if_needed(text: &str) -> String {
    let safe_character = |c: char| c.is_alphanumeric() || "_-./ +@%^~$()=<>".contains(c);
    let plain = resolve_plain(text) == Value::Text(text.to_owned())
        && !text.eq_ignore_ascii_case("none")
        && text.chars().all(safe_character)
        && (text.starts_with(|c: char| c.is_alphanumeric() || "/_$".contains(c)) || text.starts_with("./"))
        && !text.ends_with(' ');
    if plain { text.to_owned() } else { double_quoted(text) }
}

fn double_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            // The others that YAML 1.1 takes for line breaks, and the byte order mark.
            c if c.is_control() || "\u{2028}\u{2029}\u{feff}".contains(c) => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)))
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
