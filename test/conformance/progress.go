package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// ended is the line that ginkgo writes when a spec has ended; the spec's name is the next one.
var ended = regexp.MustCompile(`^\S+ (?:\[([A-Z -]+)\] )?\[([0-9.]+) seconds\]$`)

// maxLine is more than any line of ginkgo's; a longer one ends the reading of lines, not the copying.
const maxLine = 16 << 20

// follow copies what ginkgo prints and says in one line for each spec that it has ended, and what came of it.
func follow(from io.Reader, log, progress io.Writer) error {
	var copyErr, sayErr error
	result, count := "", 0
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := lines.Text()
		if copyErr == nil {
			_, copyErr = fmt.Fprintln(log, line)
		}
		if result != "" && sayErr == nil && !strings.HasPrefix(line, "[SynchronizedBeforeSuite]") && !strings.HasPrefix(line, "[SynchronizedAfterSuite]") {
			count++
			_, sayErr = fmt.Fprintf(progress, "  %3d %s  %s\n", count, result, withoutLabels(strings.Replace(line, "[It] ", "", 1)))
		}
		result = ""
		if match := ended.FindStringSubmatch(line); match != nil {
			result = fmt.Sprintf("%-8s %6.6s s", said(match[1]), match[2])
		}
	}
	_, err := io.Copy(log, from)
	return errors.Join(copyErr, sayErr, lines.Err(), err)
}

// said is what ginkgo says of how a spec ended: nothing when it passed, and nothing new when it was slow.
func said(word string) string {
	if word == "" || word == "SLOW TEST" {
		return "passed"
	}
	return strings.ToLower(word)
}
