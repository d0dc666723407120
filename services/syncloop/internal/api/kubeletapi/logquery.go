package kubeletapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// Limits of log queries, which are the kubelet's.
const (
	mostTailLines     = 100_000
	mostQueryServices = 4
	longestService    = 256
	// queryPatience bounds how long journalctl may run, and journalEnd how long to wait for its end after it was killed.
	queryPatience = 30 * time.Second
	journalEnd    = time.Second
	// journalTime is the time format of journalctl.
	journalTime = "2006-01-02 15:04:05"
)

// logQuery requests the logs of services, or one file. Nil or empty fields were not requested.
type logQuery struct {
	services, files []string
	since, until    *time.Time
	tailLines, boot *int
	pattern         string
}

// hasOptions reports whether a part of a log is requested.
func (q *logQuery) hasOptions() bool {
	return q.since != nil || q.until != nil || q.tailLines != nil || q.boot != nil || q.pattern != ""
}

// parseLogQuery parses the parameters of a request; it returns nil if the request has none of them.
func parseLogQuery(values url.Values) (*logQuery, error) {
	q := &logQuery{pattern: values.Get("pattern")}
	for _, name := range values["query"] {
		switch {
		case strings.ContainsAny(name, `/\`):
			q.files = append(q.files, name)
		case strings.TrimSpace(name) != "":
			q.services = append(q.services, name)
		}
	}
	var errs []error
	if values.Has("query") && len(q.files)+len(q.services) == 0 {
		errs = append(errs, errors.New("query: may not be empty: name a service or a file below /var/log"))
	}
	for name, into := range map[string]**time.Time{"sinceTime": &q.since, "untilTime": &q.until} {
		if text := values.Get(name); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %q is no time as 2026-01-31T12:00:00Z", name, text))
			}
			*into = &at
		}
	}
	for name, into := range map[string]**int{"boot": &q.boot, "tailLines": &q.tailLines} {
		if text := values.Get(name); text != "" {
			number, err := strconv.Atoi(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %q is no whole number", name, text))
			}
			*into = &number
		}
	}
	if len(errs) > 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	if len(q.files)+len(q.services) == 0 && !q.hasOptions() {
		return nil, nil //nolint:nilnil // nothing is an answer
	}
	return q, nil
}

// validate returns an error for an invalid query. It ensures that each part of the query is exactly one argument of
// journalctl.
func (q *logQuery) validate(root *os.Root) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, service := range q.services {
		if len(service) > longestService || strings.ContainsFunc(service, isUnsafe) {
			fail("query: %q is no name of a service: at most %d letters, digits and -_.:@", service, longestService)
		}
	}
	if len(q.services) > mostQueryServices {
		fail("query: %d services, must be at most %d", len(q.services), mostQueryServices)
	}
	switch {
	case len(q.files)+len(q.services) == 0:
		fail("query: cannot be empty with options")
	case len(q.files) > 0 && len(q.services) > 0:
		fail("query: cannot specify a file and a service")
	case len(q.files) > 1:
		fail("query: cannot specify more than one file")
	case len(q.files) == 1 && q.hasOptions():
		fail("query: cannot specify a file with options")
	case len(q.files) == 1:
		if _, err := root.Stat(q.files[0]); err != nil {
			fail("query: %w", err)
		}
	}
	if q.since != nil && q.until != nil && q.since.After(*q.until) {
		fail("untilTime: must be after sinceTime")
	}
	if q.boot != nil && *q.boot > 0 {
		fail("boot: is %d, must be less than 1: 0 is this boot of the machine, -1 the one before", *q.boot)
	}
	if q.tailLines != nil && (*q.tailLines < 0 || *q.tailLines > mostTailLines) {
		fail("tailLines: is %d, must be from 0 to %d", *q.tailLines, mostTailLines)
	}
	if _, err := syntax.Parse(q.pattern, syntax.Perl); err != nil {
		fail("pattern: %w", err)
	}
	return utilerrors.NewAggregate(errs)
}

// isUnsafe reports whether a character is not allowed in the name of a service.
func isUnsafe(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:@", r)
}

// arguments returns the arguments of journalctl for the logs of services.
func (q *logQuery) arguments(services []string) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if q.since != nil {
		args = append(args, "--since="+q.since.UTC().Format(journalTime))
	}
	if q.until != nil {
		args = append(args, "--until="+q.until.UTC().Format(journalTime))
	}
	if q.tailLines != nil {
		args = append(args, "--pager-end", fmt.Sprintf("--lines=%d", *q.tailLines))
	}
	for _, service := range services {
		args = append(args, "--unit="+service)
	}
	if q.pattern != "" {
		args = append(args, "--grep="+q.pattern)
	}
	if q.boot != nil {
		args = append(args, fmt.Sprintf("--boot=%d", *q.boot))
	}
	return args
}

// queriedLogs answers log queries, and files like nodeLogs.
func (n *node) queriedLogs(w http.ResponseWriter, r *http.Request) {
	query, err := parseLogQuery(r.URL.Query())
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case query == nil:
		n.nodeLogs(w, r)
		return
	case r.URL.Path != "/logs/":
		http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		return
	}
	root, err := os.OpenRoot(n.LogDir)
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	defer func() {
		if err := root.Close(); err != nil {
			n.Logger.DebugContext(r.Context(), "a directory could not be closed", telemetry.KeyFile, n.LogDir, telemetry.KeyError, err)
		}
	}()
	if err := query.validate(root); err != nil {
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return
	}
	if len(query.files) == 1 {
		file := r.Clone(r.Context())
		file.URL.Path, file.URL.RawPath = "/logs/"+query.files[0], ""
		n.nodeLogs(w, file)
		return
	}
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	var out io.Writer = &steady{ResponseWriter: w, to: untilDone(w, n.idle())}
	if r.Header.Get("Accept-Encoding") == "gzip" {
		w.Header().Set("Content-Encoding", "gzip")
		zipped := gzip.NewWriter(out)
		defer func() {
			if err := zipped.Close(); err != nil {
				n.Logger.DebugContext(r.Context(), "a log was not read to its end", telemetry.KeyError, err)
			}
		}()
		out = zipped
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryPatience)
	defer cancel()
	if err := query.copyTo(ctx, out, plainFiles{root}); err != nil {
		n.Logger.DebugContext(ctx, "a log was not read to its end", telemetry.KeyError, err)
	}
}

// copyTo writes the logs of services: from the journal if it has entries of the service, else from the file of that
// name. Errors are written to w, too.
func (q *logQuery) copyTo(ctx context.Context, w io.Writer, files fs.FS) error {
	units := journalUnits(ctx)
	var inJournal, inFiles []string
	for _, service := range q.services {
		if slices.Contains(units, service+".service") {
			inJournal = append(inJournal, service)
		} else {
			inFiles = append(inFiles, service)
		}
	}
	var errs []error
	printf := func(format string, args ...any) {
		_, err := fmt.Fprintf(w, "\n"+format+"\n", args...)
		errs = append(errs, err)
	}
	if len(inJournal) > 0 {
		command := journalctl(ctx, q.arguments(inJournal)...)
		command.Stdout, command.Stderr = w, w
		var exit *exec.ExitError
		if err := command.Run(); err != nil && !errors.As(err, &exit) {
			printf("error: journal output not available")
		}
	}
	if len(inFiles) > 0 && q.hasOptions() {
		printf("options present and query resolved to log files for %v\ntry without specifying options", inFiles)
		return errors.Join(errs...)
	}
	for _, service := range inFiles {
		if err := copyLogFile(ctx, w, files, service); errors.Is(err, fs.ErrNotExist) {
			printf("log not found for %s", service)
		} else if err != nil {
			printf("error getting log for %s: %v", service, err)
		}
	}
	return errors.Join(errs...)
}

// journalctl returns the command, which runs without a shell.
func journalctl(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "journalctl", args...)
	command.WaitDelay = journalEnd
	return command
}

// journalUnits returns the units that have entries in the journal; none if there is no journal.
func journalUnits(ctx context.Context) []string {
	out, err := journalctl(ctx, "--field", "_SYSTEMD_UNIT").Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(bytes.TrimSpace(out)))
}

// copyLogFile writes the first existing file of those that may contain a service's log.
func copyLogFile(ctx context.Context, w io.Writer, files fs.FS, service string) error {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		file, err := files.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		info, err := file.Stat()
		if err == nil && info.IsDir() {
			if err := file.Close(); err != nil {
				return err
			}
			continue
		}
		if err == nil {
			_, err = io.Copy(w, untilEnd{ctx, file})
		}
		return errors.Join(err, file.Close())
	}
	return fs.ErrNotExist
}

// untilEnd is a reader that stops when its context ends.
type untilEnd struct {
	ctx context.Context //nolint:containedctx // an io.Reader takes none
	io.Reader
}

// Read implements io.Reader.
func (u untilEnd) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.Reader.Read(p)
}
