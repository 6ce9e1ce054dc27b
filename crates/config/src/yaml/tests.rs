//! Scalars against PyYAML 6.0.3: the values are what `yaml.safe_load` gives (text where it fails).

use super::{float_text, quoted_if_needed, resolve_plain};
use crate::node::Value::{self, Bool, Float, Int, Null, Text};

fn text(text: &str) -> Value {
    Text(text.to_owned())
}

#[test]
fn plain_scalars_are_pyyamls() {
    let table = [
        ("0", Int(0)),
        ("1", Int(1)),
        ("-1", Int(-1)),
        ("+1", Int(1)),
        ("150_001", Int(150001)),
        ("1__0", Int(10)),
        ("_1", text("_1")),
        ("1_", Int(1)),
        ("0x1F", Int(31)),
        ("0X1F", text("0X1F")),
        ("0xg", text("0xg")),
        ("0x_", text("0x_")),
        ("-0x10", Int(-16)),
        ("0b101", Int(5)),
        ("-0b1", Int(-1)),
        ("0b2", text("0b2")),
        ("010", Int(8)),
        ("0o17", text("0o17")),
        ("08", text("08")),
        ("09", text("09")),
        ("00", Int(0)),
        ("0_", Int(0)),
        ("0_7", Int(7)),
        ("1:30", Int(90)),
        ("1:30:30", Int(5430)),
        ("-1:30", Int(-90)),
        ("01:30", text("01:30")),
        ("1:60", text("1:60")),
        ("1:5", Int(65)),
        ("1:05", Int(65)),
        ("190:20:30", Int(685230)),
        ("1:30.5", Float(90.5)),
        ("01:30.25", Float(90.25)),
        ("3.e-5", Float(3e-05)),
        ("3.e5", text("3.e5")),
        ("3e-5", text("3e-5")),
        ("1e5", text("1e5")),
        ("1.0e5", text("1.0e5")),
        ("1.0e+5", Float(100000.0)),
        ("1.5E-3", Float(0.0015)),
        (".5", Float(0.5)),
        ("-.5", text("-.5")),
        ("+.5", text("+.5")),
        ("5.", Float(5.0)),
        ("-5.", Float(-5.0)),
        ("5._", Float(5.0)),
        ("._5", text("._5")),
        (".", text(".")),
        ("..", text("..")),
        ("...", text("...")),
        ("1.2.3", text("1.2.3")),
        ("1_0.5_0", Float(10.5)),
        (".inf", Float(f64::INFINITY)),
        ("-.inf", Float(f64::NEG_INFINITY)),
        ("+.Inf", Float(f64::INFINITY)),
        (".INF", Float(f64::INFINITY)),
        ("inf", text("inf")),
        (".nan", Float(f64::NAN)),
        (".NaN", Float(f64::NAN)),
        ("-.nan", text("-.nan")),
        ("nan", text("nan")),
        ("NaN", text("NaN")),
        ("yes", Bool(true)),
        ("Yes", Bool(true)),
        ("YES", Bool(true)),
        ("yEs", text("yEs")),
        ("no", Bool(false)),
        ("on", Bool(true)),
        ("off", Bool(false)),
        ("On", Bool(true)),
        ("OFF", Bool(false)),
        ("true", Bool(true)),
        ("TRUE", Bool(true)),
        ("True", Bool(true)),
        ("tRue", text("tRue")),
        ("y", text("y")),
        ("n", text("n")),
        ("t", text("t")),
        ("~", Null),
        ("null", Null),
        ("Null", Null),
        ("NULL", Null),
        ("nULL", text("nULL")),
        ("None", text("None")),
        ("none", text("none")),
        ("2024-01-01x", text("2024-01-01x")),
        ("1,000", text("1,000")),
        ("1e", text("1e")),
        ("1.e", text("1.e")),
        ("e5", text("e5")),
        ("-", text("-")),
        ("+", text("+")),
        ("--", text("--")),
        ("=", text("=")),
        ("a", text("a")),
        ("12ab", text("12ab")),
        ("9223372036854775807", Int(i64::MAX)),
        ("-9223372036854775808", Int(i64::MIN)),
        ("0x7fffffffffffffff", Int(i64::MAX)),
        ("", Null),
    ];
    for (plain, expected) in table {
        let found = resolve_plain(plain);
        let both_nan = matches!((&found, &expected), (Float(a), Float(b)) if a.is_nan() && b.is_nan());
        assert!(both_nan || found == expected, "`{plain}` is {found:?}, expected {expected:?}");
    }
}

#[test]
fn an_integer_beyond_64_bits_stays_text() {
    assert_eq!(resolve_plain("9223372036854775808"), text("9223372036854775808"));
    assert_eq!(
        resolve_plain("99999999999999999999999999999999999999999999"),
        text("99999999999999999999999999999999999999999999")
    );
}

#[test]
fn what_is_written_reads_back() {
    for value in [
        0.0,
        -0.0,
        1.0,
        3e-5,
        1e-8,
        1e300,
        0.1,
        123456789.125,
        5e-324,
        f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ] {
        assert_eq!(resolve_plain(&float_text(value)), Float(value), "{value}");
    }
    for plain in ["a", "llama3-8b", "allenai/c4", "./output", "a b", "2024-01-01"] {
        assert_eq!(quoted_if_needed(plain), plain);
    }
    for quoted in [
        "", "yes", "1", "1e5x: ", "- a", "#", "None", "a: b", "a #b", " a", "a ", "*a", "[a", "~", "...",
        "---", "a\nb", "\u{85}",
    ] {
        assert!(quoted_if_needed(quoted).starts_with('"'), "{quoted}");
    }
}
