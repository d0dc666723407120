package applycmd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// forget lets syncloop forget a retained volume, and prints where it still is.
func (c client) forget(ctx context.Context, out io.Writer, n objectName) (err error) {
	conn, err := c.node.Dial(layout.SyncLoop)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	engine := enginev1.NewEngineServiceClient(conn)
	answer, err := engine.DeleteReleasedVolume(ctx, &enginev1.DeleteReleasedVolumeRequest{Name: n.name})
	switch s := status.Convert(err); s.Code() { //nolint:exhaustive // the others say it themselves
	case codes.OK:
	case codes.NotFound, codes.FailedPrecondition:
		return errors.New(s.Message())
	case codes.Unimplemented:
		return errors.New("this syncloop cannot delete volumes: it is of an older version")
	default:
		return fmt.Errorf("syncloop: %s", s.Message())
	}
	_, err = fmt.Fprintf(out, "%s deleted; its driver %s still has it as %s\n", n, answer.GetDriver(), answer.GetHandle())
	return err
}
