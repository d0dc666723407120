package debugcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
)

// kind is a profile that the command can take.
type kind struct {
	name string
	of   debugv1.ProfileKind
	// lengthy is set if the kind has a duration.
	lengthy bool
	// shows is for the help.
	shows string
}

// kinds returns all kinds.
func kinds() []kind {
	return []kind{
		{"cpu", debugv1.ProfileKind_PROFILE_KIND_CPU, true, "where it uses the processor"},
		{"heap", debugv1.ProfileKind_PROFILE_KIND_HEAP, false, "its objects in memory, at the last garbage collection"},
		{"allocs", debugv1.ProfileKind_PROFILE_KIND_ALLOCS, false, "all its allocations since its start"},
		{"goroutine", debugv1.ProfileKind_PROFILE_KIND_GOROUTINE, false, "the stacks of its goroutines, counted"},
		{"mutex", debugv1.ProfileKind_PROFILE_KIND_MUTEX, true, "which holders of locks others wait for"},
		{"block", debugv1.ProfileKind_PROFILE_KIND_BLOCK, true, "where its goroutines wait"},
		{"trace", debugv1.ProfileKind_PROFILE_KIND_TRACE, true, "its execution trace: every switch, system call and collection"},
	}
}

func (p *part) profileCommand() *cobra.Command {
	var seconds int
	var file string
	name := string(p.service)
	var list strings.Builder
	for _, k := range kinds() {
		fmt.Fprintf(&list, "\n  %-10s %s", k.name, k.shows)
	}
	cmd := &cobra.Command{
		Use:   "profile KIND",
		Short: "Take a profile of " + name + " and write it to a file",
		Long: "Take a profile of " + name + " and write it to a file for 'go tool pprof', or 'go tool trace' for the kind trace.\n" +
			"A profile has names of functions and numbers, but no content of pods or secrets. The kinds are:\n" + list.String(),
		Example: "  quartet debug " + name + " profile cpu --seconds 20\n  quartet debug " + name +
			" profile heap -o heap.pprof && go tool pprof -top heap.pprof",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := profileRequest(args, cmd.Flags().Changed("seconds"), seconds)
			if err != nil {
				return fmt.Errorf("%w: '%s --help' has more", err, cmd.CommandPath())
			}
			limit := req.GetDuration().AsDuration() + callTimeout
			if file == "" {
				file = p.fileName(args[0])
			}
			return p.ask(cmd.Context(), limit, func(ctx context.Context, client debugv1.DebugServiceClient) error {
				return p.takeProfile(ctx, cmd, client, req, file)
			})
		},
	}
	cmd.Flags().IntVar(&seconds, "seconds", 10, "duration of cpu, mutex, block and trace, from 1 to 300")
	cmd.Flags().StringVarP(&file, "output", "o", "",
		"`FILE` to write; - is standard output (default: "+name+"-KIND-TIME.pprof in this directory)")
	return cmd
}

// profileRequest returns the request of the arguments.
func profileRequest(args []string, given bool, seconds int) (*debugv1.ProfileRequest, error) {
	all := kinds()
	names := make([]string, 0, len(all))
	for _, k := range all {
		names = append(names, k.name)
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("say which profile: %s", strings.Join(names, ", "))
	}
	i := slices.Index(names, args[0])
	if i < 0 {
		return nil, fmt.Errorf("there is no profile %q, but %s", args[0], strings.Join(names, ", "))
	}
	req := &debugv1.ProfileRequest{Kind: all[i].of}
	switch {
	case all[i].lengthy:
		req.Duration = durationpb.New(time.Duration(seconds) * time.Second)
	case given:
		return nil, fmt.Errorf("%s shows one moment and has no --seconds", args[0])
	}
	return req, nil
}

// fileName returns the default name of a profile's file.
func (p *part) fileName(name string) string {
	ending := "pprof"
	if name == "trace" {
		ending = "trace"
	}
	return fmt.Sprintf("%s-%s-%s.%s", p.service, name, p.clock.Now().Format("20060102T150405"), ending)
}

// takeProfile writes a profile to a file, and says what to do with it.
func (p *part) takeProfile(
	ctx context.Context, cmd *cobra.Command, client debugv1.DebugServiceClient, req *debugv1.ProfileRequest, file string,
) error {
	stream, err := client.Profile(ctx, req)
	if err != nil {
		return err
	}
	chunk := func() ([]byte, error) {
		m, err := stream.Recv()
		return m.GetData(), err
	}
	if file == "-" {
		_, err := receive(cmd.OutOrStdout(), chunk)
		return err
	}
	written, err := receiveFile(file, chunk)
	if err != nil {
		return err
	}
	tool := "pprof"
	if req.GetKind() == debugv1.ProfileKind_PROFILE_KIND_TRACE {
		tool = "trace"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s in %s: go tool %s %[2]s\n", size(written), file, tool)
	return err
}

func (p *part) goroutinesCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "goroutines",
		Short: "Print the stacks of all goroutines of " + string(p.service),
		Long: "Print the stacks of all goroutines of " + string(p.service) + ": what each does or waits for, and for how long.\n" +
			"It shows why a process stands still.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.ask(cmd.Context(), callTimeout, func(ctx context.Context, client debugv1.DebugServiceClient) error {
				stream, err := client.DumpGoroutines(ctx, &debugv1.DumpGoroutinesRequest{})
				if err != nil {
					return err
				}
				chunk := func() ([]byte, error) {
					m, err := stream.Recv()
					return m.GetText(), err
				}
				if file == "" || file == "-" {
					_, err = receive(cmd.OutOrStdout(), chunk)
				} else {
					_, err = receiveFile(file, chunk)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`FILE` to write (default: standard output)")
	return cmd
}

// receive writes all chunks of a stream, and returns how many bytes they had.
func receive(to io.Writer, chunk func() ([]byte, error)) (written uint64, err error) {
	for {
		data, err := chunk()
		if errors.Is(err, io.EOF) {
			return written, nil
		}
		if err != nil {
			return written, err
		}
		n, err := to.Write(data)
		written += uint64(n) //nolint:gosec // it is not negative
		if err != nil {
			return written, fmt.Errorf("write what has been received: %w", err)
		}
	}
}

// receiveFile is receive to a file that only its owner may read. A failure before the first chunk leaves the file as it
// was, and a later one leaves none.
func receiveFile(path string, chunk func() ([]byte, error)) (written uint64, err error) {
	first, err := chunk()
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, fmt.Errorf("-o: %w", err)
	}
	defer func() {
		info, statErr := file.Stat()
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err != nil && statErr == nil && info.Mode().IsRegular() {
			_ = os.Remove(path) // err says why the profile is not there
		}
	}()
	return receive(file, func() ([]byte, error) {
		if len(first) == 0 {
			return chunk()
		}
		data := first
		first = nil
		return data, nil
	})
}
