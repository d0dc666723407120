package updown

import (
	"fmt"
	"io"
	"time"
)

// progress prints a line for each completed step with its duration.
type progress struct {
	out io.Writer
}

// step executes one step. The detail that do returns is printed with the duration.
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

// seconds formats a duration as in the lines of the build, so that both align.
func seconds(took time.Duration) string { return fmt.Sprintf("%7.1f s", took.Seconds()) }

// note prints information that needs no action.
func (p progress) note(text string) {
	p.printf("  note    %s\n", text)
}

func (p progress) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.out, format, args...) // progress that cannot be printed is no reason to stop
}
