// Package recordcmd implements `quartet record`, which writes the streams of a node into a file, and `quartet replay`,
// which runs a part against such a file.
package recordcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/recordfile"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

const (
	// defaultLimit is the default of --max-size, in MiB, and mebibyte its unit.
	defaultLimit = 256
	mebibyte     = 1 << 20
	// healthPeriod is the interval of questions for the health of pleg.
	healthPeriod = 2 * time.Second
)

// RecordCommand is `quartet record`.
func RecordCommand() *cobra.Command {
	var o recorder
	cmd := &cobra.Command{
		Use:   "record FILE",
		Short: "Write the streams of all four processes into a file, without secrets",
		Long: "Write the streams of the node's processes into a file, every change with its time, until Ctrl-C, for the time of\n" +
			"--for, or until the file has the size of --max-size. 'quartet replay FILE' runs syncloop against it. Values that may\n" +
			"be secret are replaced by digests: environment, commands, arguments, annotations. Names and images stay. Calls of\n" +
			"the runtime by pleg and syncloop are written with their answers if the user has the role admin.",
		Example: "  quartet record node.jsonl --for 10m",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("say where to: " + cmd.CommandPath() + " FILE")
			}
			if cmd.Flags().Changed("for") && o.length <= 0 {
				return fmt.Errorf("--for: %s: must be more than 0, for example 10m", o.length)
			}
			if o.limit < 1 {
				return fmt.Errorf("--max-size: %d: must be 1 or more", o.limit)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.record(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.DurationVar(&o.length, "for", 0, "`DURATION` after which to end, for example 10m; without it, until Ctrl-C")
	flags.Int64Var(&o.limit, "max-size", defaultLimit, "size in `MIB` at which to end")
	flags.BoolVar(&o.calls, "runtime-calls", true, "record the calls of the runtime and the heartbeats, too; that needs the role admin")
	flags.BoolVar(&o.force, "force", false, "replace the file if there is one")
	o.node.AddFlags(flags)
	return cmd
}

// recorder holds the flags of a recording, and its state.
type recorder struct {
	node   target.Node
	length time.Duration
	limit  int64
	force  bool
	// calls is true if calls of the runtime are recorded, too. Notes to the user go to notes.
	calls bool
	notes io.Writer

	out  *noderecording.Writer
	mask *noderecording.Mask

	mu sync.Mutex
	// awaited are the streams that have not sent their state yet.
	awaited map[noderecording.Part]bool
}

// streams are the streams of a node, in the order of their recording, with their services and their names for people.
// Those of calls need the role admin.
var streams = []struct {
	part    noderecording.Part
	service layout.Service
	name    string
	calls   bool
}{
	{noderecording.Desired, layout.ConfigMux, "pod updates", false},
	{noderecording.Node, layout.NodeStatus, "the Node", false},
	{noderecording.Events, layout.PLEG, "lifecycle events", false},
	{noderecording.Pods, layout.SyncLoop, "pods", false},
	{noderecording.PodEvents, layout.SyncLoop, "events", false},
	{noderecording.PLEGCalls, layout.PLEG, "runtime calls", true},
	{noderecording.SyncLoopCalls, layout.SyncLoop, "runtime calls", true},
	{noderecording.Heartbeats, layout.NodeStatus, "heartbeats", true},
}

// record writes the streams until the command is interrupted, the time is over, or the file is full.
func (o *recorder) record(cmd *cobra.Command, path string) (err error) {
	o.notes = cmd.ErrOrStderr()
	clients, closeAll, err := o.dial(cmd.Context())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	file, err := recordfile.Create(path, o.force)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	o.mask = noderecording.NewMask()
	if o.out, err = noderecording.NewWriter(file, time.Now(), o.limit*mebibyte); err != nil {
		return err
	}
	ctx := cmd.Context()
	if o.length > 0 {
		limited, cancel := context.WithTimeout(ctx, o.length)
		defer cancel()
		ctx = limited
	}
	failed := o.follow(ctx, clients)
	if failed != nil && !errors.Is(failed, recordfile.ErrFull) {
		return fmt.Errorf("%w: the recording is cut off after %d changes", failed, o.out.Entries())
	}
	if err := o.out.End(time.Now()); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("write the recording to the disk: %w", err)
	}
	full := ""
	if failed != nil {
		full = fmt.Sprintf(", which has %d MiB and takes no more: --max-size sets another size", o.limit)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Recorded %d changes in %s%s\n", o.out.Entries(), path, full)
	return errors.Join(err, o.lacking(path))
}

// lacking returns an error that names the streams whose state is not in the recording; nil if there are none.
func (o *recorder) lacking(path string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var missing []string
	for _, s := range streams {
		if o.awaited[s.part] {
			missing = append(missing, fmt.Sprintf("%s of %s", s.name, s.service))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%s lacks %s, whose state was not sent before the recording ended: quartet doctor shows whether the "+
		"node is well; record again, for longer", path, strings.Join(missing, ", "))
}

// has notes that a stream has sent its state, or that it is not recorded.
func (o *recorder) has(part noderecording.Part) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.awaited, part)
}

// dial connects to the four services. It fails if one of them is unreachable, before there is a file.
func (o *recorder) dial(ctx context.Context) (c clients, closeAll func() error, err error) {
	var closers []func() error
	closeAll = func() error {
		var errs []error
		for _, one := range closers {
			errs = append(errs, one())
		}
		return errors.Join(errs...)
	}
	for _, service := range layout.Services() {
		conn, err := o.node.Connect(ctx, service)
		if err != nil {
			return clients{}, nil, errors.Join(err, closeAll())
		}
		closers = append(closers, conn.Close)
		c.set(service, conn)
	}
	return c, closeAll, nil
}

// follow records until ctx ends, which is no error, or a write fails.
func (o *recorder) follow(ctx context.Context, c clients) error {
	o.awaited = map[noderecording.Part]bool{}
	for _, s := range streams {
		o.awaited[s.part] = o.calls || !s.calls
	}
	group, ctx := errgroup.WithContext(ctx)
	known := make(chan struct{})
	// The state of the runtime is recorded after its calls have begun, so that each later change has its calls.
	calling := make(chan struct{})
	if o.calls {
		group.Go(func() error {
			return o.followCalls(ctx, noderecording.PLEGCalls, layout.PLEG, c.pleg, func() { close(calling) })
		})
		group.Go(func() error {
			return o.followCalls(ctx, noderecording.SyncLoopCalls, layout.SyncLoop, c.syncloop, func() {})
		})
	} else {
		close(calling)
	}
	group.Go(func() error {
		first := func() {
			select {
			case <-known:
			default:
				close(known)
			}
		}
		return followPart(ctx, o, noderecording.Desired, c.desired(), first)
	})
	// What runs is recorded after what is desired, because it is recorded in relation to that.
	after := func(run func() error) {
		group.Go(func() error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-known:
				return run()
			}
		})
	}
	after(func() error { return followPart(ctx, o, noderecording.Node, c.nodes(), nil) })
	after(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-calling:
			return followPart(ctx, o, noderecording.Events, c.events(), nil)
		}
	})
	after(func() error { return o.followHeartbeats(ctx, c) })
	after(func() error { return followPart(ctx, o, noderecording.Pods, c.pods(), nil) })
	after(func() error { return followPart(ctx, o, noderecording.PodEvents, c.podEvents(), nil) })
	after(func() error { return o.health(ctx, c) })
	err := group.Wait()
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// refusal explains why the stream of a part is not given.
func refusal(part noderecording.Part) func(error) error {
	for _, s := range streams {
		if s.part == part {
			return streamrpc.Refusal(s.service, s.name)
		}
	}
	return streamrpc.Refusal("the node", string(part))
}

// followPart records one stream. first is called when its state is known; it may be nil.
func followPart[V proto.Message](
	ctx context.Context, o *recorder, part noderecording.Part, source stream.Source[V], first func(),
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	write := func(op noderecording.Op, key string, value proto.Message) {
		if err := o.write(part, op, key, value); err != nil {
			cancel(err)
		}
	}
	err := stream.Follow(ctx, stream.FollowConfig[V]{
		Name: string(part), Source: streamrpc.UntilRefused(source, refusal(part)), Logger: slog.New(slog.DiscardHandler),
		Handle: func(c stream.Change[V]) {
			switch {
			case c.Op != stream.OpRemove:
				write(noderecording.Put, c.Key, c.New)
			case c.FromSnapshot:
				write(noderecording.Remove, c.Key, nil)
			default:
				write(noderecording.Remove, c.Key, c.New)
			}
		},
		Synced: func() {
			write(noderecording.Synced, "", nil)
			if first != nil {
				first()
			}
		},
		Connected: func(up bool, _ error) {
			if !up {
				write(noderecording.Down, "", nil)
			}
		},
	})
	if refused := (*stream.RefusedError)(nil); errors.As(err, &refused) {
		return refused
	}
	return context.Cause(ctx)
}

// write records one change.
func (o *recorder) write(part noderecording.Part, op noderecording.Op, key string, value proto.Message) error {
	e := noderecording.Entry{Time: time.Now(), Part: part, Op: op, Key: key}
	if value != nil && value.ProtoReflect().IsValid() {
		masked, err := o.mask.Value(value)
		if err != nil {
			return err
		}
		e.Value = masked
	}
	if err := o.out.Write(e); err != nil {
		return err
	}
	if op == noderecording.Synced {
		o.has(part)
	}
	return nil
}
