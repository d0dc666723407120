package updown

import (
	"fmt"
	"io"
	"time"
)

// progress prints a line for each step when it is done, with the time that it took.
type progress struct {
	out io.Writer
}

// step does one step. What do returns as its detail is printed with the time.
func (p progress) step(name string, do func() (detail string, err error)) error {
	begin := time.Now()
	detail, err := do()
	took := seconds(time.Since(begin))
	if err != nil {
		p.printf("  failed  %-28s %s\n", name, took)
		return fmt.Errorf("%s: %w", name, err)
	}
	p.printf("  ok      %-28s %s  %s\n", name, took, detail)
	return nil
}

// seconds is a time as the lines of the build have it, so that both stand in one column.
func seconds(took time.Duration) string { return fmt.Sprintf("%7.1f s", took.Seconds()) }

// note prints something that the operator should know and need not act on.
func (p progress) note(text string) {
	p.printf("  note    %s\n", text)
}

func (p progress) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.out, format, args...) // progress that cannot be shown is no reason to stop
}
