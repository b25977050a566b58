-- From here on messages are locked by ranges. Workers of schema 2 do not look there, and would hand them out again.
SELECT 1;
