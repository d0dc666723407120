package machine

import (
	"errors"
	"fmt"
)

// Level is the severity of a finding.
type Level int

// The levels, in order of severity.
const (
	// OK: the requirement is met.
	OK Level = iota
	// Warning: the node runs, but something is limited.
	Warning
	// Fault: the node cannot run, or it harms another program.
	Fault
)

// String returns the level's name for people and scripts.
func (l Level) String() string {
	switch l {
	case OK:
		return "ok"
	case Warning:
		return "warning"
	case Fault:
		return "fault"
	default:
		return fmt.Sprintf("level %d", int(l))
	}
}

// MarshalText returns the level's name.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Finding is the result of one check.
type Finding struct {
	// Check names the check in one to three words.
	Check string `json:"check"`
	// Level is the severity.
	Level Level `json:"result"`
	// Detail describes what was found or what is missing.
	Detail string `json:"detail"`
	// Fix is the remedy: a command, or the setting to change. It is empty if nothing is wrong.
	Fix string `json:"fix,omitempty"`
}

// Ok returns a finding of level OK.
func Ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Detail: fmt.Sprintf(format, args...)}
}

// With returns the finding with another level, detail and remedy.
func (f Finding) With(level Level, detail, fix string) Finding {
	f.Level, f.Detail, f.Fix = level, detail, fix
	return f
}

// Unknown returns the finding for a fact that cannot be read.
func Unknown(check string, err error) Finding {
	return Finding{
		Check: check, Level: Warning, Detail: "cannot be determined: " + err.Error(),
		Fix: "run the command as root, on the machine itself",
	}
}

// Findings are the results of several checks.
type Findings []Finding

// Err returns all faults with their remedies in one error; nil if there are none.
func (f Findings) Err() error {
	var errs []error
	for _, finding := range f {
		if finding.Level == Fault {
			errs = append(errs, fmt.Errorf("%s: %s: %s", finding.Check, finding.Detail, finding.Fix))
		}
	}
	return errors.Join(errs...)
}

// Count returns the number of findings of a level.
func (f Findings) Count(level Level) int {
	n := 0
	for _, finding := range f {
		if finding.Level == level {
			n++
		}
	}
	return n
}
