//! Reads `.tiktoken` files: a line per token, `base64 of its bytes`, a space, `rank`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::DataError;

/// More than any tokenizer in use has (Llama 3's longest token has 128 bytes); keeps the work of a bad file bounded.
const LONGEST_TOKEN: usize = 1024;

/// The tokens of the file `name` with content `content`, in the order of their ranks: the token at index i has rank i.
///
/// # Errors
/// [`DataError::Row`] names the first line that can't be read; [`DataError::File`] what is missing as a whole.
pub(super) fn parse(name: &str, content: &[u8]) -> Result<Vec<Vec<u8>>, DataError> {
    let mut ranked: Vec<(u32, u64, Vec<u8>)> = Vec::new();
    for (line, number) in content.split(|&byte| byte == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if !line.is_empty() {
            let (token, rank) = parse_line(line).map_err(|reason| DataError::Row {
                file: name.to_owned(),
                row: number,
                reason,
            })?;
            ranked.push((rank, number, token));
        }
    }
    ranked.sort_unstable_by_key(|&(rank, line, _)| (rank, line));
    for (&(rank, line, _), expected) in ranked.iter().zip(0..) {
        if rank != expected {
            let reason = if rank < expected {
                format!("rank {rank} is there twice")
            } else {
                format!(
                    "rank {rank} follows rank {}; ranks count from 0 without gaps",
                    i64::from(expected) - 1
                )
            };
            return Err(DataError::Row { file: name.to_owned(), row: line, reason });
        }
    }
    if ranked.is_empty() {
        return Err(DataError::File { file: name.to_owned(), reason: "no tokens in it".to_owned() });
    }
    Ok(ranked.into_iter().map(|(_, _, token)| token).collect())
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, u32), String> {
    let shown = || String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let (Some(token), Some(rank), None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(format!("expected `base64 rank`, found `{}`", shown()));
    };
    let token = STANDARD.decode(token).map_err(|error| format!("`{}` is not base64: {error}", shown()))?;
    if token.is_empty() || token.len() > LONGEST_TOKEN {
        return Err(format!("a token of {} bytes; expected 1 to {LONGEST_TOKEN}", token.len()));
    }
    let rank = str::from_utf8(rank).ok().and_then(|rank| rank.parse().ok());
    let rank = rank.ok_or_else(|| format!("the rank in `{}` is not a number below 2^32", shown()))?;
    Ok((token, rank))
}
