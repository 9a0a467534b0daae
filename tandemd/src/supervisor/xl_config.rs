//! A domain's configuration as `xl` reads it (xl.cfg(5)): statements `KEY = VALUE` and `KEY += VALUE`, parted by ends
//! of lines and by semicolons.
//!
//! What `xl` would refuse is not refused here: it says better what is wrong.

/// What a configuration says of a key in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Its strings: one, or those of a list.
    pub strings: Vec<String>,
    /// It, if it is a number, or a string that is one.
    pub number: Option<u32>,
    is_list: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A key, or a number.
    Word(String),
    String(String),
    /// Anything else; the end of a line is one.
    Sign(char),
}

/// What is said of this key; `None`: nothing.
pub fn value_of(text: &str, key: &str) -> Option<Value> {
    let tokens = tokens_of(text);
    let mut rest = tokens.as_slice();
    let mut value: Option<Value> = None;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let (adds, behind) = match behind {
            [Token::Sign('='), behind @ ..] => (false, behind),
            [Token::Sign('+'), Token::Sign('='), behind @ ..] => (true, behind),
            _ => continue,
        };
        let Token::Word(of) = first else { continue };
        let (said, behind) = take_value(behind);
        rest = behind;
        if of == key {
            let before = value.take().filter(|_| adds);
            value = Some(before.map_or(said.clone(), |before| before.and(said)));
        }
    }
    value
}

impl Value {
    /// With more.
    fn and(mut self, more: Self) -> Self {
        match self.strings.as_mut_slice() {
            [all] if !self.is_list && !more.is_list => all.push_str(&more.strings.concat()),
            _ => self.strings.extend(more.strings),
        }
        Self { number: more.number, is_list: self.is_list || more.is_list, ..self }
    }
}

/// The value that these begin with, and what is behind it.
fn take_value(mut rest: &[Token]) -> (Value, &[Token]) {
    let (mut value, mut depth) = (Value::default(), 0_u32);
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match first {
            Token::Sign('[') => (value.is_list, depth) = (true, depth + 1),
            Token::Sign(']') => depth = depth.saturating_sub(1),
            Token::Sign(_) => {}
            Token::String(string) => {
                value.number = string.trim().parse().ok();
                value.strings.push(string.clone());
            }
            Token::Word(word) => value.number = word.parse().ok(),
        }
        if depth == 0 && !matches!(first, Token::Sign('\n')) {
            break;
        }
    }
    (value, rest)
}

fn tokens_of(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().peekable();
    let is_of_word = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
    while let Some(first) = rest.next() {
        match first {
            '#' => while rest.next_if(|letter| *letter != '\n').is_some() {},
            '"' | '\'' => tokens.push(Token::String(string_in(first, &mut rest))),
            _ if is_of_word(&first) => {
                let mut word = String::from(first);
                word.extend(std::iter::from_fn(|| rest.next_if(is_of_word)));
                tokens.push(Token::Word(word));
            }
            ' ' | '\t' | '\r' => {}
            _ => tokens.push(Token::Sign(first)),
        }
    }
    tokens
}

/// The rest of a string that has begun with this quote. It ends with its line at the latest.
fn string_in(quote: char, rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let mut string = String::new();
    while let Some(letter) = rest.next_if(|letter| *letter != '\n') {
        match letter {
            _ if letter == quote => break,
            '\\' => string.extend(rest.next_if(|letter| *letter != '\n').map(|escaped| match escaped {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            })),
            _ => string.push(letter),
        }
    }
    string
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(text: &str, key: &str) -> Option<Vec<String>> {
        value_of(text, key).map(|value| value.strings)
    }

    #[test]
    fn the_last_assignment_counts_and_what_is_added_to_it() {
        let text = "a = ['1']; a = [ '2', # '3'\n \"4\", ]\nb='x' ; a += ['5']\nb += 'y'\nc += [\"z\"]";
        assert_eq!(strings(text, "a").unwrap(), ["2", "4", "5"]);
        assert_eq!(strings(text, "b").unwrap(), ["xy"]);
        assert_eq!(strings(text, "c").unwrap(), ["z"]);
        assert_eq!(strings(text, "x"), None);
        assert_eq!(strings("a = [['1', 2], ['3']]; b = '4'", "a").unwrap(), ["1", "3"]);
        assert_eq!(strings("a = []", "a").unwrap(), [""; 0]);
    }

    #[test]
    fn what_a_string_says_is_no_statement() {
        let text = "a = 'x; b = \"1\" # no' # b = '2'\nc = 'it\\'s'; d = \"]\"";
        assert_eq!((strings(text, "b"), strings(text, "c").unwrap()), (None, vec!["it's".to_string()]));
        assert_eq!(strings(text, "d").unwrap(), ["]"]);
    }

    #[test]
    fn numbers_may_be_strings() {
        let number = |text: &str| value_of(text, "n").and_then(|value| value.number);
        assert_eq!(
            [number("n=7"), number("n = '8'; m=1"), number("n=\"x\""), number("m=1")],
            [Some(7), Some(8), None, None]
        );
    }

    #[test]
    fn what_is_broken_has_an_end() {
        for text in ["a", "a =", "a = [", "a = ['1'", "a = '1", "= = =", "a += + = ]]", "a\n=\n'1'"] {
            let _ = value_of(text, "a");
        }
        assert_eq!(strings("a = '1\nb = '2'", "b").unwrap(), ["2"]);
    }
}
