//! Literals, names, blanks and comments.

use crate::check;

#[test]
fn numbers() {
    check(&[
        ("0", "0"),
        ("42", "42"),
        ("-42", "-42"),
        ("007", "7"),
        ("0x1F", "31"),
        ("0XfF", "255"),
        ("-0x10", "-16"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("0x7fffffffffffffff", "9223372036854775807"),
        ("-0x8000000000000000", "-9223372036854775808"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("1e3", "1000.0"),
        ("1E+3", "1000.0"),
        ("2.5e-1", "0.25"),
        ("-1.0", "-1.0"),
        ("1.0", "1.0"),
        ("- 5", "-5"),
        (
            "9223372036854775808",
            "refused: line 1, column 1: the number 9223372036854775808 does not fit 64 bits",
        ),
        (
            "-9223372036854775809",
            "refused: line 1, column 2: the number -9223372036854775809 does not fit 64 bits",
        ),
        (
            "99999999999999999999",
            "refused: line 1, column 1: the number 99999999999999999999 does not fit 64 bits",
        ),
        ("1e999", "refused: line 1, column 1: the number 1e999 does not fit 64 bits"),
        ("0x", "refused: line 1, column 1: the number 0x does not fit 64 bits"),
        ("1u", "refused: line 1, column 2: unsigned numbers are not supported; leave out the u"),
        ("0x1U", "refused: line 1, column 4: unsigned numbers are not supported; leave out the u"),
        (
            "12abc",
            "refused: line 1, column 3: a letter follows a number; put a space or an operator between them",
        ),
        (
            "1e",
            "refused: line 1, column 2: a letter follows a number; put a space or an operator between them",
        ),
        ("1.", "refused: line 1, column 3: found the end where the name of a field or a method is expected"),
        ("1.2.3", "refused: line 1, column 4: found a number where an operator or the end is expected"),
    ]);
}

#[test]
fn texts() {
    check(&[
        (r#""""#, r#""""#),
        (r#""abc""#, r#""abc""#),
        ("'abc'", r#""abc""#),
        (r#"'say "x"'"#, r#""say \"x\"""#),
        (r#""it's""#, r#""it's""#),
        (r#""a\nb\tc""#, r#""a\nb\tc""#),
        (r#"'\\\'\"\`\?'"#, r#""\\'\"`?""#),
        (r#"'\x41\X42\u0043\U00000044\105'"#, r#""ABCDE""#),
        (r#"'\a\b\f\r\v'"#, r#""\u{7}\u{8}\u{c}\r\u{b}""#),
        (r#"'\u00e8'"#, r#""è""#),
        (r#"'\377'"#, r#""ÿ""#),
        ("'è già 日本'", r#""è già 日本""#),
        (r#"r'\d+\n'"#, r#""\\d+\\n""#),
        (r#"R"\d""#, r#""\\d""#),
        ("'''one\n'two' ''end'''", r#""one\n'two' ''end""#),
        (r#""""say "x"\n""""#, r#""say \"x\"\n""#),
        (r#"r"""\""""#, r#""\\""#),
        ("''''''", r#""""#),
        ("'' + ''", r#""""#),
        ("'abc", "refused: line 1, column 1: the string has no end"),
        (
            "'a\nb'",
            "refused: line 1, column 1: the string has no end on its line; one over lines has three quotes",
        ),
        ("'''a'", "refused: line 1, column 1: the string has no end"),
        (
            r"'a\",
            r"refused: line 1, column 3: unknown escape; there are \n \t \\ \' \x41 \u0041 and CEL's others, or r'…'",
        ),
        (
            r"'\q'",
            r"refused: line 1, column 2: unknown escape; there are \n \t \\ \' \x41 \u0041 and CEL's others, or r'…'",
        ),
        (
            r"'\ud800'",
            r"refused: line 1, column 2: unknown escape; there are \n \t \\ \' \x41 \u0041 and CEL's others, or r'…'",
        ),
        (
            r"'\x4'",
            r"refused: line 1, column 2: unknown escape; there are \n \t \\ \' \x41 \u0041 and CEL's others, or r'…'",
        ),
        (
            r"'\400'",
            r"refused: line 1, column 2: unknown escape; there are \n \t \\ \' \x41 \u0041 and CEL's others, or r'…'",
        ),
        ("b'abc'", "refused: line 1, column 1: bytes are not supported; write a string, without the b"),
        ("rb'abc'", "refused: line 1, column 1: bytes are not supported; write a string, without the b"),
    ]);
}

#[test]
fn the_rest() {
    check(&[
        ("true", "true"),
        ("false", "false"),
        ("null", "null"),
        ("[]", "[]"),
        ("[1, 'a', null, [2.0]]", r#"[1, "a", null, [2.0]]"#),
        ("[1, 2,]", "[1, 2]"),
        ("[i, d]", "[7, 2.5]"),
        ("  1 \t\r\n + // one\n 2 // two", "3"),
        ("// nothing\n1", "1"),
        ("b", "true"),
        ("i", "7"),
        ("d", "2.5"),
        ("n", "4"),
        ("s", r#""hello""#),
        ("few", "[3,1.5,2]"),
        ("(((1)))", "1"),
        ("j.n", "null"),
        ("j.huge", "1.8446744073709552e19"),
        ("j.max", "9223372036854775807"),
        ("j.whole", "2.0"),
        ("j.eo", "{}"),
        ("", "refused: line 1, column 1: found the end where a value is expected"),
        ("   ", "refused: line 1, column 4: found the end where a value is expected"),
        ("// only", "refused: line 1, column 8: found the end where a value is expected"),
        ("[,]", "refused: line 1, column 2: found ',' where a value is expected"),
        ("[1 2]", "refused: line 1, column 4: found a number where ']' is expected"),
        ("(1", "refused: line 1, column 3: found the end where ')' is expected"),
        ("1)", "refused: line 1, column 2: found ')' where an operator or the end is expected"),
        ("1 2", "refused: line 1, column 3: found a number where an operator or the end is expected"),
        ("i i", "refused: line 1, column 3: found 'i' where an operator or the end is expected"),
        ("s 'x'", "refused: line 1, column 3: found a string where an operator or the end is expected"),
        ("True", "refused: line 1, column 1: unknown variable 'True'; there are b, i, d, n, s, j, few"),
        ("è", "refused: line 1, column 1: unexpected character 'è'"),
        ("1 +\n  §", "refused: line 2, column 3: unexpected character '§'"),
        ("'è' + x", "refused: line 1, column 7: unknown variable 'x'; there are b, i, d, n, s, j, few"),
        ("i = 1", "refused: line 1, column 3: unexpected '='; equality is '=='"),
        ("b & b", "refused: line 1, column 3: unexpected '&'; and is '&&'"),
        ("b | b", "refused: line 1, column 3: unexpected '|'; or is '||'"),
        ("if", "refused: line 1, column 1: 'if' is a reserved word of CEL and cannot be a name"),
        ("while(1)", "refused: line 1, column 1: 'while' is a reserved word of CEL and cannot be a name"),
        ("in", "refused: line 1, column 1: found 'in' where a value is expected"),
        ("`i`", "refused: line 1, column 1: found `i` where a value is expected"),
        (".i", "refused: line 1, column 1: found '.' where a value is expected"),
        ("{'a': 1}", "refused: line 1, column 1: maps cannot be written out here"),
        ("i{}", "refused: line 1, column 2: found '{' where an operator or the end is expected"),
    ]);
}
