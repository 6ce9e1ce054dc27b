//! x
fn main() { let a: Vec<String> = std::env::args().skip(1).collect(); let (c, rest) = a.split_first().unwrap();
 let args = mt_config::LoadArgs::from_command_line((c != "-").then(|| c.into()), rest).unwrap();
 match mt_config::load(&args) { Ok(c) => print!("{}", c.dry_run_report(false)), Err(e) => println!("{e}") } }
