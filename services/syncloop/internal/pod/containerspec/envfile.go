package containerspec

import (
	"fmt"
	"strings"
)

// lookUpInEnvFile returns the value of a name in a file of environment variables. Each is NAME='value' without spaces;
// a value has no escapes, may span lines, and may be followed by a comment. Empty lines and lines that begin with # are
// ignored, and NAME= before a space is an empty value. It fails with the line of the first syntax error before the
// name.
func lookUpInEnvFile(text, wanted string) (value string, ok bool, err error) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		fail := func(why string) (string, bool, error) {
			return "", false, fmt.Errorf("line %d: %s", i+1, why)
		}
		line := strings.TrimLeft(strings.TrimSuffix(lines[i], "\r"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, assigns := strings.Cut(line, "=")
		switch {
		case !assigns:
			return fail("there is no =")
		case name == "":
			return fail("there is no name before the =")
		case strings.TrimRight(name, " \t") != name:
			return fail("there is a space before the =")
		case rest != strings.TrimLeft(rest, " \t"):
			if name == wanted {
				return "", true, nil
			}
			continue
		case !strings.HasPrefix(rest, "'"):
			return fail("the value must be in single quotes")
		}
		value, after, ends := strings.Cut(rest[1:], "'")
		for !ends && i+1 < len(lines) {
			i++
			var more string
			more, after, ends = strings.Cut(lines[i], "'")
			value += "\n" + more
		}
		if !ends {
			return fail("the single quote is not closed")
		}
		if after = strings.TrimSpace(after); after != "" && after[0] != '#' {
			return fail("there is something after the closing quote")
		}
		if name == wanted {
			return value, true, nil
		}
	}
	return "", false, nil
}
