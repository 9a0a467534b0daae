//! The project's own build, test and bench commands: one file per subcommand.

fn main() {}
